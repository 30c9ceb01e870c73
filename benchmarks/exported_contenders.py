"""What a user would take instead on a CPU: OpenVINO and ONNX Runtime, on the model that torch exports, in float32, with constant weights.

Both get the number of threads that torch has in this process, and read the caller's tensors and hand out their results without a copy. A
model that was converted once lies in the contender's cache, which a warm process loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

Inputs = dict[str, torch.Tensor]


def openvino(model: torch.nn.Module, inputs: Inputs, cache: Path) -> Any:
    """OpenVINO from `torch.export`'s graph. In float32: left alone it computes in bfloat16 where the machine has AMX."""
    import openvino as ov

    stored, core = cache / "model.xml", ov.Core()
    core.set_property({"CACHE_DIR": str(cache / "blobs")})
    if not stored.exists():
        converted = ov.convert_model(torch.export.export(model, (), inputs))
        ov.save_model(converted, stored, compress_to_fp16=False)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = core.compile_model(stored, "CPU", settings)

    def call(**arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = compiled({name: value.numpy() for name, value in arguments.items()}, share_inputs=True, share_outputs=True)
        return tuple(torch.from_numpy(found[number]) for number in range(len(found)))

    return call


def onnxruntime(model: torch.nn.Module, inputs: Inputs, cache: Path) -> Any:
    """ONNX Runtime from `torch.onnx.export`'s model."""
    import onnxruntime as ort

    stored = cache / "model.onnx"
    if not stored.exists():
        torch.onnx.export(model, (), str(stored), kwargs=inputs, dynamo=True, verbose=False)
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(stored), options, providers=["CPUExecutionProvider"])

    def call(**arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = session.run(None, {name: value.numpy() for name, value in arguments.items()})
        return tuple(torch.from_numpy(value) for value in found)

    return call
