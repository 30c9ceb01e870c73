"""Front end: a Python call -> guards, a functional ATen graph, rewritten bytecode. The only folder that touches torch's private tracers."""

from precast.capture.dynamic import Dynamic
from precast.capture.entry import CaptureOptions, capture
from precast.capture.frame import CapturedFrame, CaptureRefused, GraphBreak, MarkViolated

__all__ = ["CaptureOptions", "CaptureRefused", "CapturedFrame", "Dynamic", "GraphBreak", "MarkViolated", "capture"]
