"""Tests that fail with a torch that precast supports, since its tracer goes wrong there, and has no adapter of ours yet.

Each is a strict xfail with that torch: where one passes, its row has to go. docs/guards-beyond-dynamo.md lists the kinds for users.
"""

from __future__ import annotations

import pytest

from precast.runtime.targets.versions import torch_minor

FAULTS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "2.11": {
        "lists that are sorted by keys with effects, one of which raises": {
            "tests/end_to_end/soundness/test_side_effects.py": ("test_as_eager_leaves_it[list_sorted_by_a_key_with_effects]",),
        },
        "some effects on lists, dicts, iterators and class attributes are replayed otherwise than Python makes them": {
            "tests/end_to_end/soundness/test_side_effects.py": (
                "test_as_eager_leaves_it[class_attribute_written]",
                "test_as_eager_leaves_it[dict_del_missing_raises]",
                "test_as_eager_leaves_it[exception_caught_after_effects]",
                "test_as_eager_leaves_it[frozenset_rebound]",
                "test_as_eager_leaves_it[list_times_and_plus]",
                "test_as_eager_leaves_it[named_tuple_of_lists]",
                "test_as_eager_leaves_it[property_setter]",
                "test_as_eager_leaves_it[tuple_and_range_iterators]",
            ),
        },
        "quantiles test their shares in a way that cannot be traced as one graph": {
            "tests/ops/test_checks.py": (
                "test_what_eager_answers_is_answered[dynamic]",
                "test_what_eager_answers_is_answered[static]",
            ),
        },
        "what a metaclass defines, and methods of tuples, are taken as they are": {
            "tests/end_to_end/soundness/test_lookups.py": (
                "test_a_change_before_the_first_call_of_another_process[object: a method of a tuple]",
                "test_a_change_before_the_first_call_of_another_process[object: a method of the metaclass]",
                "test_a_change_before_the_first_call_of_another_process[object: a property of the metaclass]",
                "test_a_change_before_the_first_call_of_another_process[object: the type of an instance]",
                "test_a_change_is_noticed[object: a method of a tuple]",
                "test_a_change_is_noticed[object: a method of the metaclass]",
                "test_a_change_is_noticed[object: a property of the metaclass]",
                "test_a_change_is_noticed[object: the class over its metaclass]",
                "test_a_change_is_noticed[object: the type of an instance]",
                "test_a_change_is_noticed_where_sizes_vary[object: a method of a tuple]",
                "test_a_change_is_noticed_where_sizes_vary[object: a method of the metaclass]",
            ),
        },
        "torch's own door: attributes of modules keep what they were": {
            "tests/end_to_end/soundness/test_tensor_metadata.py": (
                "test_by_torchs_door_equals_eager[dynamic-buffer_transposed]",
                "test_by_torchs_door_equals_eager[dynamic-hot_swapped]",
                "test_by_torchs_door_equals_eager[dynamic-method_assigns]",
                "test_by_torchs_door_equals_eager[dynamic-parameter_assigned]",
                "test_by_torchs_door_equals_eager[static-buffer_transposed]",
                "test_by_torchs_door_equals_eager[static-hot_swapped]",
                "test_by_torchs_door_equals_eager[static-method_assigns]",
                "test_by_torchs_door_equals_eager[static-parameter_assigned]",
            ),
        },
        "floats that vary, handed over as tensors": {
            "tests/parity/test_torch_backend.py": (
                "test_floats_that_vary_are_numbers[None]",
                "test_floats_that_vary_are_numbers[True]",
            ),
        },
        "tuples and class attributes are followed as objects of their own": {
            "tests/end_to_end/soundness/test_identity.py": (
                "test_equals_eager[cold-class attribute and argument]",
                "test_equals_eager[cold-iterator]",
                "test_equals_eager[cold-tuple of lists]",
                "test_equals_eager[warm-class attribute and argument]",
                "test_equals_eager[warm-iterator]",
                "test_equals_eager[warm-tuple of lists]",
            ),
        },
        "quantiles cannot be traced as one graph; clamp by tensors with NaN and infinite bounds": {
            "tests/ops/test_values.py": (
                "test_the_same_with_symbolic_sizes[values/conv2d/hardtanh-bf16]",
                "test_values_that_are_no_numbers[values/conv2d/hardtanh-bf16]",
                "test_values_that_are_no_numbers[values/quantile-f32]",
            ),
        },
        "id() of a list cannot be traced": {
            "tests/capture/test_patched_torch.py": ("test_of_an_object_whose_id_is_taken_its_contents_do_not_count",),
        },
        "a list times a size that varies": {
            "tests/capture/dynamo/test_warnings.py": ("test_a_size_that_varies_is_a_place_in_a_list[times]",),
        },
    },
    "2.14": {
        "what sets an attribute of tensors is called by name (`torch.Tensor.data.__set__`): an error inside of the tracer": {
            "tests/end_to_end/soundness/test_tensor_metadata.py": (
                "test_by_torchs_door_equals_eager[dynamic-descriptor_set]",
                "test_by_torchs_door_equals_eager[static-descriptor_set]",
                "test_compiled_equals_eager[dynamic-descriptor_set]",
                "test_compiled_equals_eager[static-descriptor_set]",
                "test_served_from_the_store_equals_eager[dynamic-descriptor_set]",
                "test_served_from_the_store_equals_eager[static-descriptor_set]",
            ),
        },
    },
    "2.15": {
        "a view, itself of a view that the call is given, changes in place where sizes vary: no backend's trace ends": {
            "tests/end_to_end/soundness/test_tensor_metadata.py": (
                "test_by_torchs_door_equals_eager[dynamic-view_of_an_argument]",
                "test_by_torchs_door_equals_eager[dynamic-view_of_an_argument_transposed]",
                "test_by_torchs_door_equals_eager[static-view_of_an_argument]",
                "test_by_torchs_door_equals_eager[static-view_of_an_argument_transposed]",
                "test_compiled_equals_eager[dynamic-view_of_an_argument]",
                "test_compiled_equals_eager[dynamic-view_of_an_argument_transposed]",
                "test_served_from_the_store_equals_eager[dynamic-view_of_an_argument]",
                "test_served_from_the_store_equals_eager[dynamic-view_of_an_argument_transposed]",
            ),
        },
    },
}
"""torch -> what is wrong there -> file of tests -> its tests."""


def mark(items: list[pytest.Item]) -> None:
    """Marks those of the torch at hand."""
    known = {
        f"{file}::{test}": reason
        for reason, files in FAULTS.get(torch_minor(), {}).items()
        for file, tests in files.items()
        for test in tests
    }
    for item in items:
        if reason := known.get(item.nodeid):
            item.add_marker(pytest.mark.xfail(reason=f"torch {torch_minor()}: {reason}", strict=True))


__all__ = ["FAULTS", "mark"]
