"""Front end: a Python call -> guards, a functional ATen graph, rewritten bytecode. The only folder that touches torch's private tracers."""

from precast.capture.entry import CaptureOptions, capture
from precast.capture.frame import CapturedFrame, CaptureRefused, GraphBreak

__all__ = ["CaptureOptions", "CaptureRefused", "CapturedFrame", "GraphBreak", "capture"]
