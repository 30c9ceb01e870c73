"""Front end: a Python call -> guards, a functional ATen graph, rewritten bytecode. The only folder that touches torch's private tracers."""

from precast.capture.capture import CaptureOptions, capture
from precast.capture.common.captured_frame import CapturedFrame, CaptureRefused, GraphBreak, MarkViolated
from precast.capture.dynamo.dynamic_shapes import Dynamic

__all__ = ["CaptureOptions", "CaptureRefused", "CapturedFrame", "Dynamic", "GraphBreak", "MarkViolated", "capture"]
