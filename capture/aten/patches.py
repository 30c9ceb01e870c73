"""What is patched in AOTAutograd, ATen and fake tensors while a graph is traced to ATen, and while there is no GPU to trace for.

The order of rows is that in which they are applied. Where it matters, a comment says why.
"""

from __future__ import annotations

from typing import Any

import torch.fx

from precast.capture.aten import absent_device as absent
from precast.capture.aten import effects
from precast.capture.aten.backward_walk import in_python
from precast.capture.aten.keep_attention import whole_attention
from precast.capture.aten.wrong_decompositions import kept_whole
from precast.capture.common.patching import Patch, always
from precast.capture.graph.triton_launches import writes_known

_TRACERS = "traces in other threads: "

PATCHES: tuple[Patch[torch.fx.GraphModule], ...] = (
    # First of the three: whether an operator has effects is asked of it, and answered with no from here on.
    Patch(
        ("torch._library.effects:EffectHolder._effect", "torch.fx.node:_side_effectful_functions"),
        "Operators with effects would get tokens as arguments, which generated code has none of; and unread ones would be dropped.",
        "",
        effects.effects_as_calls,
        others=f"{_TRACERS}these operators get no tokens meanwhile; that they have side effects stays known to torch.fx",
        untested="with torch 2.13 the row below suffices for all programs of the tests; torch 2.11 and 2.12 were not tried",
    ),
    Patch(
        ("torch._higher_order_ops.effects:handle_effects",),
        "Higher-order operators that always ask for a token would get one.",
        "tests/capture/test_patched_torch.py::test_operators_that_ask_for_a_token_get_none",
        always(effects.plain_calls),
    ),
    Patch(
        ("torch._library.utils:is_impure",),
        "Draws that nothing reads would be dropped, and later ones would give other numbers than eager's.",
        "tests/capture/test_patched_torch.py::test_draws_that_nothing_reads_stay",
        always(effects.draws_kept),
    ),
    Patch(
        ("torch._functorch.partitioners:fx_graph_cse",),
        "Of two equal draws in a call that records gradients, such as two Gumbel noises, there would be one.",
        "tests/training/test_randomness.py::test_numbers_are_eagers",
        always(effects.draws_apart),
    ),
    Patch(
        ("torch.nn.functional:scaled_dot_product_attention",),
        "Attention on a GPU would become the kernel that torch takes on the device at hand.",
        "tests/capture/test_fake_device.py::test_attention_stays_whole_as_the_fused_kernels_lay_it_out",
        whole_attention,
        others="the function is another object; called, it is what it was",
    ),
    Patch(
        ("triton.runtime:driver._active",),
        "Where there is no GPU, torch takes each tensor that a Triton kernel is given for written.",
        "tests/end_to_end/test_triton_kernels.py::test_what_is_not_written_is_not_copied_and_nothing_twice",
        always(writes_known),
        others="where there is no GPU, Triton's driver says that there is an H100; nothing can be launched there anyway",
        without="slower",
    ),
    Patch(
        ("torch._ops:OpOverload.py_kernels",),
        "Operators would be decomposed by rules of torch's that compute something else than their kernels.",
        "tests/end_to_end/soundness/test_tracer_soundness.py::test_labels_behind_the_first_minus_one_do_not_count",
        always(kept_whole),
        others=f"{_TRACERS}these operators stay whole in graphs; eager calls do not ask for kernels in Python",
    ),
)
"""While AOTAutograd traces a graph of Dynamo's, which each row is given."""

ABSENT_DEVICE: tuple[Patch[None], ...] = (
    # First: all that follows may make tensors on the GPU.
    Patch(
        ("torch._C:_ensureCUDADeviceGuardSet",),
        "Autograd asks the device's guard for a stream, and ends the process where there is none.",
        "tests/capture/test_fake_device.py::test_guards_are_those_of_real_tensors",
        always(absent.no_op_guards),
        others="c10's table of device guards has an entry for CUDA, where no CUDA device is",
    ),
    Patch(
        ("torch._C:_set_only_lift_cpu_tensors",),
        "A literal on the GPU would be made there while it is traced.",
        "",
        always(absent.literals_lifted_on_cpu),
        others="a literal on the GPU, which is not there, is made on the CPU first",
        untested="no program is known whose trace depends on it with torch 2.13; torch 2.11 and 2.12 were not tried",
    ),
    Patch(
        ("torch.cuda.amp.common:amp_definitely_not_available",),
        "Autocast for the GPU would warn and be off.",
        "tests/capture/test_fake_device.py::test_autocast_for_the_gpu",
        always(absent.autocast_possible),
    ),
    Patch(
        ("torch.cuda:is_bf16_supported",),
        "Autocast in bfloat16 would be refused.",
        "tests/capture/test_fake_device.py::test_autocast_for_the_gpu",
        always(absent.bfloat16_possible),
    ),
    Patch(
        ("torch._dynamo.variables.torch:TorchInGraphFunctionVariable.as_python_constant",),
        "Traced code that asks whether there is a GPU would be told that there is none.",
        "tests/capture/test_fake_device.py::test_code_that_asks_for_a_gpu_hears_yes",
        always(absent.available_when_traced),
    ),
    Patch(
        ("torch.fx.experimental.proxy_tensor:proxy_call", "torch.fx.experimental.proxy_tensor:CONSTANT_NUMEL_LIMIT"),
        "The tracer would move a literal to the GPU, to know the elements of the result.",
        "",
        always(absent.moves_recorded),
        others=f"{_TRACERS}constants are not folded, while such a literal is moved",
        untested="no program is known whose graph depends on it with torch 2.13; torch 2.11 and 2.12 were not tried",
    ),
    Patch(
        ("torch.autograd:_engine_run_backward", "torch:Tensor.register_hook"),
        "Autograd's engine asks for the current stream of the GPU, and raises where there is none; and it alone knows of hooks.",
        "tests/capture/test_fake_device.py::test_backward_graphs_are_those_of_real_tensors",
        always(in_python),
        without="refused",
    ),
)
"""While fake tensors on a GPU are traced, or made, where there is none."""

COPIES: tuple[Patch[Any], ...] = (
    Patch(
        ("torch:Tensor.__deepcopy__", "torch.nn:Parameter.__deepcopy__"),
        "A copy of the program would have copies of its weights.",
        "tests/capture/test_fake_device.py::test_what_has_no_stand_in",
        absent.tensors_stood_for,
    ),
    Patch(
        ("torch:device.__reduce__",),
        "Objects that keep a device would keep the one that they were made for.",
        "tests/capture/test_fake_device.py::test_a_device_that_an_object_keeps_stands_for_the_gpu",
        absent.devices_stood_for,
    ),
)
"""While a program is copied with stand-ins for its tensors (StandIns, which each row is given)."""

__all__ = ["ABSENT_DEVICE", "COPIES", "PATCHES"]
