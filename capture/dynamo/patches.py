"""What is patched in Dynamo while it traces for precast: why, for which torch, and which test fails without it.

The order of rows is that in which they are applied: of two that patch the same function, the later one is asked first. Where the order
matters, a comment says why; elsewhere rows of one subject stand together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format.guards import Path
from precast.capture.adapters.variables import GETATTR, ListMethods, OrderedDictVariable, builtin, object_protocol
from precast.capture.common import release_references
from precast.capture.common.patching import Patch, always
from precast.capture.dynamo import speedups, trace_record
from precast.capture.dynamo.assumed_constants import recorded_constants
from precast.capture.dynamo.break_at_operators import broken_at_operators
from precast.capture.dynamo.directives import tell_tracer
from precast.capture.dynamo.dynamic_shapes import Dynamic, known_changes
from precast.capture.dynamo.globals_scope import names_of_this_trace
from precast.capture.dynamo.per_call_inputs import per_call_arguments
from precast.capture.dynamo.trace_record import TraceRecord
from precast.capture.dynamo.warnings import tracer_words
from precast.capture.graph.empty_graphs import empty_graphs_shown
from precast.capture.graph.symbolic_floats import zeros_are_constants
from precast.capture.graph.triton_launches import kernels_known
from precast.capture.soundness import attribute_lookup as lookups
from precast.capture.soundness import class_effects as classes
from precast.capture.soundness import container_effects as containers
from precast.capture.soundness import dynamo_faults as gaps
from precast.capture.soundness import tensor_metadata
from precast.capture.soundness.drawn_numbers import drawn_in_default_dtype
from precast.capture.soundness.exec_namespaces import looked_up_where_they_are
from precast.capture.soundness.memory_overlap import overlaps_refused
from precast.capture.soundness.mesh_coordinates import recorded_coordinates
from precast.capture.soundness.nested_regions import regions_traced_anew
from precast.capture.soundness.process_groups import recorded_members, recorded_questions
from precast.capture.soundness.tuple_identity import tuples_are_themselves
from precast.capture.soundness.wide_integers import larger_are_constants


@dataclass(frozen=True)
class Tracing:
    """One trace, as its patches know it. `namespace`: the globals of the traced function. `is_bound`: does a source stay out of the call?
    `path_of`: the path of the source of this name, while tracing goes on.
    """

    namespace: dict[str, Any]
    record: TraceRecord
    dynamic: Dynamic
    is_bound: Callable[[Any], bool]
    path_of: Callable[[str, Any], Path | None]


def _at_once(install: Callable[[], None]) -> Callable[[Any], contextlib.AbstractContextManager[Any]]:
    """`apply` of a row that is there for good once a trace has begun."""

    def apply(tracing: Any) -> contextlib.AbstractContextManager[Any]:
        install()
        return contextlib.nullcontext()

    return apply


_V = "torch._dynamo.variables"
_MESH = "torch.distributed.device_mesh:DeviceMesh"
_BUILDER = f"{_V}.builder:VariableBuilder"
_EFFECTS = "torch._dynamo.side_effects:SideEffects"
_STORE = f"{_EFFECTS}.store_attr"
_OBJECT = f"{_V}.user_defined:UserDefinedObjectVariable"
_CLASS = f"{_V}.user_defined:UserDefinedClassVariable"
_DEQUE = f"{_V}.lists:DequeVariable"
_OWN_DICT = f"{_V}.dicts:DunderDictVariable"
_USERS = f"{_V}.user_defined:UserDefined*Variable"
_FUNCTION = f"{_V}.functions:UserFunctionVariable"
_TRANSLATOR = "torch._dynamo.symbolic_convert"
_FOR_GOOD = "stays; Dynamo for other backends passes through it"

PATCHES: tuple[Patch[Tracing], ...] = (
    # -- for good
    Patch(
        (
            "torch._dynamo.utils:run_node",
            f"{_V}.builder:wrap_to_fake_tensor_and_record",
            "torch._subclasses.meta_utils:MetaTensorDescriber.describe_tensor",
            f"{_V}.tensor:UntypedStorageVariable.call_method",
            *(f"{_V}.tensor:TensorVariable.{name}" for name in tensor_metadata.NOTED),
        ),
        "What Dynamo noted of a tensor would be taken for true after `t_`, `x.data = y` or `resize_` changed it.",
        "tests/capture/test_patched_torch.py::test_the_shape_of_a_tensor_is_what_an_operator_has_made_of_it",
        _at_once(tensor_metadata.install),
        others=_FOR_GOOD,
    ),
    Patch(
        (
            "torch._dynamo.trace_rules:_polyfilled_function_ids",
            "torch._dynamo.trace_rules:get_torch_obj_rule_map",
            f"{_BUILDER}._id_dispatch",
            f"{_V}:PolyfilledFunctionVariable._get_polyfill_handlers",
        ),
        "Directives that were given before the tracer was imported (`allow_in_graph`, `substitute_in_graph`) would not be known to it.",
        "tests/parity/test_directives.py::test_substitute_in_graph_of_index_of",
        _at_once(tell_tracer),
        others="stays: the user has asked for it",
    ),
    # -- around all others: what the rows below put into globals, or make torch say, is undone or told as well
    Patch(
        (
            "torch._dynamo.output_graph:OutputGraph.install_global_unsafe",
            f"{_TRANSLATOR}:InstructionTranslatorBase.import_source",
            "torch._dynamo.codegen:PyCodegen.setup_globally_cached",
        ),
        "What Dynamo puts into the globals of the user's module would stay there.",
        "tests/capture/dynamo/test_globals_scope.py::test_what_others_set_stays_and_what_dynamo_set_leaves",
        lambda tracing: names_of_this_trace(tracing.namespace),
    ),
    Patch(
        ("warnings:_showwarnmsg",),
        "Warnings would name lines of precast's, and failures that become refusals would be printed as well.",
        "tests/capture/dynamo/test_warnings.py::test_no_warning_names_a_line_of_precasts",
        always(tracer_words),
        without="words",
    ),
    # -- work that a capture has no use for
    Patch(
        ("torch.fx._lazy_graph_module:_use_lazy_graph_module_flag",),
        "The Python of graphs that nobody runs would be written and compiled.",
        "tests/capture/test_patched_torch.py::test_graphs_that_nobody_runs_are_not_written",
        always(speedups.unwritten_graphs),
        others="graph modules that torch.fx makes meanwhile compile their Python when they are first run",
        without="slower",
    ),
    Patch(
        (f"{_TRANSLATOR}:InstructionTranslator._throw_if_in_functorch",),
        "Each first trace would import every backend that Dynamo has.",
        "tests/capture/test_patched_torch.py::test_a_trace_imports_no_more_than_it_uses[torch._dynamo.backends.tvm]",
        always(speedups.backends_unimported),
        without="slower",
    ),
    Patch(
        (f"{_V}.higher_order_ops:LocalMapWrappedHigherOrderVariable.should_wrap_in_hop",),
        "Each first trace would import much of torch.distributed.",
        "tests/capture/test_patched_torch.py::test_a_trace_imports_no_more_than_it_uses[torch.distributed.tensor.experimental._func_map]",
        always(speedups.distributed_unimported),
        without="slower",
    ),
    Patch(
        (f"{_TRANSLATOR}:get_funcname",),
        "A twentieth of each trace would go into names for a log that is off.",
        "tests/capture/dynamo/test_speedups.py::test_source_files_are_tokenized_for_a_log_that_is_read",
        always(speedups.functions_unnamed),
        without="slower",
    ),
    # -- what the trace looked at. The record of reads is the innermost patch of `_wrap`'s original: refusals below it read nothing.
    Patch(
        (f"{_TRANSLATOR}:InliningInstructionTranslator.check_inlineable",),
        "Code that was inlined would not be fingerprinted.",
        "tests/capture/test_patched_torch.py::test_code_of_a_function_without_a_module_is_fingerprinted",
        lambda tracing: trace_record.recorded_inlining(tracing.record.functions),
    ),
    Patch(
        (f"{_V}.builtin:BuiltinVariable.call_id",),
        "Objects whose `id()` is taken would be pinned, and code with `copy.deepcopy` could not be stored.",
        "tests/capture/test_patched_torch.py::test_of_an_object_whose_id_is_taken_its_contents_do_not_count",
        lambda tracing: trace_record.recorded_ids(tracing.record.compared),
        without="refused",
    ),
    Patch(
        (f"{_BUILDER}._wrap", f"{_BUILDER}.__call__"),
        "Which objects were read without a guard, and which are reached in two ways, would not be known.",
        "tests/capture/guards/test_method_guards.py::test_what_is_put_in_its_place_misses",
        lambda tracing: trace_record.recorded_reads(tracing.record.consumed, tracing.record.met),
    ),
    Patch(
        (f"{_V}.functions:invoke_and_store_as_constant", f"{_V}.nn_module:invoke_and_store_as_constant"),
        "Results of `assume_constant_result` would be taken for constants in processes where they differ.",
        "tests/capture/test_patched_torch.py::test_a_result_that_is_assumed_to_be_constant_is_recorded",
        lambda tracing: recorded_constants(tracing.record.constants),
    ),
    Patch(
        (f"{_V}.torch:TorchInGraphFunctionVariable.call_function",),
        "One rank's number, or the number of processes, would be a constant in the artifact of all ranks.",
        "tests/training/test_process_groups.py::test_ranks_are_guarded_where_code_asks_for_them",
        lambda tracing: recorded_questions(tracing.record.asked),
    ),
    Patch(
        (
            *(f"{_MESH}.{name}" for name in ("get_coordinate", "get_local_rank", "get_rank", "_sym_get_coordinate")),
            "torch.distributed.tensor._utils:_compute_local_shape_and_global_offset",
        ),
        "One rank's slice of a tensor, or the length of its shard, would be a constant in the artifact of all ranks.",
        "tests/training/test_tensor_parallel.py::test_a_graph_that_depends_on_the_rank_is_one_rank_s",
        lambda tracing: recorded_coordinates(tracing.record.asked),
        versions=("2.12", "2.13", "2.14", "2.15"),
    ),
    Patch(
        (f"{_V}.script_object:CustomClassObjectVariable.call_method",),
        "What a process group answers would be a constant in the artifact of all ranks.",
        "tests/training/test_process_groups.py::test_a_group_is_asked_again",
        lambda tracing: recorded_members(tracing.record.asked),
        versions=("2.14", "2.15"),
    ),
    Patch(
        (f"{_V}.script_object:TorchScriptObjectVariable.call_method",),
        "What a process group answers would be a constant in the artifact of all ranks.",
        "tests/training/test_process_groups.py::test_a_group_is_asked_again",
        lambda tracing: recorded_members(tracing.record.asked),
        versions=("2.12", "2.13"),
    ),
    Patch(
        (f"{_V}.builtin:vt_identity_compare",),
        "`a is b` would be False of one tuple that is reached in two ways.",
        "tests/end_to_end/soundness/test_identity.py::test_one_and_two_tuples_of_constants_where_the_program_asks",
        lambda tracing: tuples_are_themselves(builtin, tracing.record.met, tracing.record.told_apart),
        versions=("2.13", "2.14", "2.15"),
    ),
    Patch(
        (f"{_V}.object_protocol:vt_identity_compare",),
        "The same, where torch 2.12 compares.",
        "",
        lambda tracing: tuples_are_themselves(object_protocol, tracing.record.met, tracing.record.told_apart),
        versions=("2.12",),
        untested="it is seen on torch 2.12 only, which no test runs on",
    ),
    # -- attributes and keys that are absent, numbers that vary
    Patch(
        (f"{_V}.dicts:ConstDictVariable.getitem_const_raise_exception_if_absent",),
        "A KeyError that the traced code catches would be taken for certain.",
        "tests/end_to_end/soundness/test_tracer_soundness.py::test_a_key_that_was_absent",
        always(gaps.absent_keys),
    ),
    Patch(
        (f"{_V}.object_protocol:binary_op1",),
        "`'%d' % n` and `n + 1j` with a number that varies would raise a TypeError that Python does not raise.",
        "tests/end_to_end/soundness/test_tracer_soundness.py::test_operations_with_a_number_that_varies",
        always(gaps.numbers_in_every_operation),
        versions=("2.13", "2.14", "2.15"),
    ),
    Patch(
        (f"{_TRANSLATOR}:InliningGeneratorInstructionTranslator.dispatch_table",),
        "`x = yield from g()` would be None, whatever `g` returns.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[generator_returns_through_yield_from]",
        always(gaps.results_of_generators),
        versions=("2.11", "2.12", "2.13"),
    ),
    Patch(
        (f"{_V}.builtin:BuiltinVariable.call_function",),
        "What a key function of `max` and `min` does besides would be done while tracing, and lost.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[list_sorted_by_a_key_with_effects]",
        always(gaps.keys_of_extremes),
        versions=("2.11", "2.12", "2.13"),
    ),
    Patch(
        (f"{_V}.misc:RandomVariable.call_method",),
        "`random.shuffle` and `sample` would give what they gave while they were traced.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[random_sample_and_seed]",
        always(gaps.states_of_generators),
        versions=("2.14", "2.15"),
    ),
    Patch(
        (f"{_BUILDER}._wrap",),
        "`next(G)` of a generator of before the call would give what it gave while it was traced.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[generator_of_the_caller]",
        always(gaps.generators_of_the_caller),
        versions=("2.14", "2.15"),
    ),
    Patch(
        (f"{_OBJECT}.{GETATTR}",),
        "An attribute of the class would be taken though the object has got one of its own.",
        "tests/capture/test_patched_torch.py::test_an_attribute_of_its_own_hides_what_getattr_of_the_class_finds",
        always(lookups.absence_from_instances),
    ),
    Patch(
        (f"{_CLASS}.{GETATTR}",),
        "Data that a class has of its metaclass would be taken as it was.",
        "tests/capture/test_patched_torch.py::test_data_of_a_metaclass_is_guarded",
        always(lookups.values_of_metaclasses),
    ),
    Patch(
        (f"{_V}.tensor:TensorVariable.{GETATTR}",),
        "A tensor's method would be taken though the tensor has got an attribute of that name.",
        "tests/capture/test_patched_torch.py::test_an_attribute_of_its_own_hides_a_tensors_method",
        always(lookups.methods_of_tensors),
    ),
    Patch(
        (f"{_V}.*:*.call_obj_hasattr", f"{_V}.*:*.{GETATTR}"),
        "Whether a function, partial or module has an attribute would be asked of the one at hand, without a guard.",
        "tests/capture/test_patched_torch.py::test_that_a_function_lacks_an_attribute_is_guarded",
        always(lookups.presence_on_functions),
    ),
    Patch(
        (f"{_V}.nn_module:UnspecializedNNModuleVariable.manually_trace_nn_module_getattr",),
        "A name among a module's buffers and submodules would be the submodule, where Python finds the buffer.",
        "tests/end_to_end/soundness/test_lookups.py::test_a_name_among_buffers_and_submodules_is_the_buffer[precast]",
        always(lookups.buffers_before_modules),
    ),
    Patch(
        (f"{_OBJECT}.{GETATTR}",),
        "A bound method in a module's own `__dict__` would be taken as it was.",
        "tests/end_to_end/test_replaced_forward.py::test_a_replaced_forward_is_compiled_stored_and_guarded",
        always(lookups.bound_methods_of_instances),
        versions=("2.11", "2.12"),
    ),
    Patch(
        (f"{_V}.lists:{ListMethods.__name__}.call_method", f"{_USERS}.call_method"),
        "`items.pop(n)` and `items *= n` with a number that varies would fail in the tracer.",
        "tests/capture/test_patched_torch.py::test_a_place_that_varies_is_a_constant_and_the_graph_goes_on",
        always(gaps.places_in_lists),
        without="refused",
    ),
    Patch(
        (f"{_TRANSLATOR}:InstructionTranslatorBase.call_function",),
        "A call that wants a constant where a number varies would fail in the tracer, and not end the graph.",
        "tests/capture/test_patched_torch.py::test_a_call_that_wants_a_constant_ends_the_graph",
        always(gaps.calls_that_want_constants),
        without="refused",
    ),
    Patch(
        (f"{_V}.invoke_subgraph:save_reuse_entry",),
        "A number that changes in one of several equal regions (`nested_compile_region`) would go unnoticed.",
        "tests/parity/test_newer_directives.py::test_nested_compile_region",
        always(regions_traced_anew),
        versions=("2.13", "2.14", "2.15"),
    ),
    # -- side effects on containers
    Patch(
        (f"{_BUILDER}.wrap_listlike", f"{_DEQUE}.call_method", f"{_EFFECTS}.codegen_update_mutated"),
        "A deque of the caller's would be taken for unbounded.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[deque_append_bounded]",
        always(containers.bounds_of_deques),
    ),
    Patch(
        (f"{_DEQUE}.sq_concat_impl", f"{_DEQUE}.sq_repeat_impl", f"{_DEQUE}.sq_inplace_repeat_impl", f"{_DEQUE}.tp_iter_impl"),
        "Operators on a bounded deque would lose its bound, and its iterator would not notice changes.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[deque_copies_keep_the_bound]",
        always(containers.operators_of_deques),
        versions=("2.13", "2.14"),
    ),
    Patch(
        (
            f"{_V}.user_defined:UserDefinedDequeVariable.call_method",
            f"{_DEQUE}.tp_init_impl",
            f"{_V}.lists:DequeIteratorVariable.reconstruct",
            f"{_V}.lists:DequeReverseIteratorVariable.reconstruct",
        ),
        "A copy of a deque of a user's class would be a plain one, `__init__` would not change the bound, and iterators would be others.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[deque_made_again]",
        always(containers.deques_made_otherwise),
        versions=("2.14", "2.15"),
    ),
    Patch(
        (f"{_V}.dicts:ConstDictVariable.call_method", f"{_USERS}.call_method", f"{_EFFECTS}.codegen_update_mutated"),
        "A dict that is filled again, and `popitem`, would leave another order than eager's.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[dict_popitem_with_other_keys_later]",
        always(containers.orders_of_dicts),
    ),
    Patch(
        (f"{getattr(OrderedDictVariable, '__module__', '')}:OrderedDictVariable.call_method",),
        "`move_to_end` would not be replayed.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[ordered_move_to_end]",
        always(containers.moves_in_ordered_dicts),
        versions=("2.13", "2.14", "2.15"),
    ),
    Patch(
        (
            f"{_V}.dicts:SideEffectsProxyDict.__iter__",
            f"{_V}.dicts:SideEffectsProxyDict.__contains__",
            f"{_OWN_DICT}.create",
            f"{_OWN_DICT}.reconstruct",
        ),
        "The keys of an object's `__dict__` would come in another order, and which they are, and their order, would not be guarded.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[own_dict_read_after_writes]",
        always(containers.own_dicts_in_order),
        versions=("2.12", "2.13", "2.14", "2.15"),
    ),
    Patch(
        (f"{_V}.base:VariableTracker._contains_self_reference", f"{_DEQUE}.reconstruct"),
        "A container of the caller's that is reached from itself would come back as a copy.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[list_inside_list]",
        always(containers.containers_are_themselves),
    ),
    Patch(
        (f"{_BUILDER}._wrap", f"{_EFFECTS}.mutation"),
        "`keys()` of before the call would not see what the call changes.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[dict_views_after_writes]",
        always(containers.views_of_dicts),
    ),
    Patch(
        (f"{_V}:SetVariable.call_method", f"{_USERS}.call_method"),
        "`set.pop` would take another member than eager's.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[set_pop_of_many]",
        always(containers.members_of_sets),
    ),
    Patch(
        (f"{_V}:SetVariable.nb_inplace_subtract_impl",),
        "`s -= t` would take nothing from a set of the caller's.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[augmented_assignments_keep_identity]",
        always(containers.members_taken_in_place),
        versions=("2.13", "2.14"),
    ),
    Patch(
        (f"{_V}.lists:ListIteratorVariable.reconstruct",),
        "An iterator over a list that outlives the call would be one over a tuple.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[iterator_made_inside_and_kept]",
        always(containers.kinds_of_iterators),
    ),
    # -- side effects on classes, objects and functions
    Patch(
        (f"{_BUILDER}._wrap", f"{_FUNCTION}.bind_args", f"{_FUNCTION}.get_source"),
        "What a method writes through its closure would be lost, and what it reads there not be guarded.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[method_of_an_outer_class]",
        always(classes.closures_of_methods),
    ),
    Patch(
        (_STORE, f"{_OBJECT}.{GETATTR}", f"{_CLASS}.{GETATTR}", f"{_CLASS}.call_obj_hasattr"),
        "An instance would not find what the traced code has written to its class.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[class_attribute_of_self]",
        always(classes.attributes_of_classes),
    ),
    Patch(
        (f"{_V}.functions:fn_var_getattr", f"{_FUNCTION}.call_obj_hasattr"),
        "`getattr(f, 'calls', 0)` would be taken for 0 for good.",
        "tests/end_to_end/soundness/test_tracer_soundness.py::test_what_getattr_answers_depends_on_the_absence",
        always(classes.absent_attributes_of_functions),
        versions=("2.11", "2.12"),
    ),
    Patch(
        (_STORE,),
        "An attribute that is deleted and set again would keep its old place in the object's `__dict__`; a `__dict__` would be another.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[attributes_deleted_and_set]",
        always(classes.attributes_set_again),
    ),
    Patch(
        (f"{_EFFECTS}.store_instance_dict_attr",),
        "The same, where torch forgets the deletion before it stores what is set.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[attributes_deleted_and_set]",
        always(classes.own_attributes_set_again),
        versions=("2.14", "2.15"),
    ),
    Patch(
        (f"{_CLASS}.call_function",),
        "A `__del__` would run later than in eager.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[del_method]",
        always(classes.finalizers),
    ),
    Patch(
        (
            f"{_V}.functions:WrapperUserFunctionVariable.call_function",
            f"{_BUILDER}._wrap",
            f"{_EFFECTS}.mutation",
            _STORE,
        ),
        "A function behind `functools.lru_cache` would run each time, where Python returns the object that it has.",
        "tests/end_to_end/soundness/test_side_effects.py::test_as_eager_leaves_it[lru_cached_helper]",
        always(classes.cached_functions),
    ),
    Patch(
        (f"{_V}.functions:is_lru_cache_wrapper_trace_without_warning_allowed",),
        "Dynamo would warn that it ignores caches, which the row above does not.",
        "tests/capture/dynamo/test_warnings.py::test_a_cached_helper_that_returns_a_constant_warns_of_nothing",
        always(classes.caches_without_warning),
        versions=("2.13", "2.14", "2.15"),
        without="words",
    ),
    Patch(
        ("torch._dynamo.utils:warn_once",),
        "The same, where there is no such question.",
        "tests/capture/dynamo/test_warnings.py::test_a_cached_helper_that_returns_a_constant_warns_of_nothing",
        always(classes.no_warning_of_caches),
        versions=("2.11", "2.12"),
        without="words",
    ),
    # -- what a graph is given, and where it ends
    Patch(
        ("torch._dynamo.output_graph:is_noop_graph",),
        "Bytecode would call a graph of which nobody was told: one that computes and returns nothing.",
        "tests/capture/graph/test_empty_graphs.py::test_whoever_traces_is_shown_a_graph_that_computes_nothing",
        always(empty_graphs_shown),
        versions=("2.15",),
    ),
    Patch(
        ("torch._subclasses.fake_tensor:FakeTensorMode.dispatch",),
        "Writes to memory that overlaps would pass that eager refuses, or give other numbers.",
        "tests/capture/test_patched_torch.py::test_writes_to_memory_that_stands_for_several_elements_are_refused",
        always(overlaps_refused),
    ),
    Patch(
        (f"{_TRANSLATOR}:InliningInstructionTranslator.get_globals_source_and_value",),
        "Globals of functions made by `exec` would be looked up in another module.",
        "tests/end_to_end/test_exec_namespaces.py::test_globals_of_inlined_functions",
        always(looked_up_where_they_are),
    ),
    Patch(
        ("torch._dynamo.codegen:PyCodegen.make_call_generated_code", "torch._dynamo.output_graph:OutputGraph.graphargs"),
        "Rewritten bytecode would pass weights, and sizes that can be read off tensors, in each call.",
        "tests/end_to_end/dynamic/test_symbolic_floats.py::test_two_compiles_serve_all_values",
        lambda tracing: per_call_arguments(tracing.is_bound),
    ),
    Patch(
        ("torch._dynamo.pgo:process_automatic_dynamic", f"{_V}.builder:process_automatic_dynamic"),
        "What varies would be what torch remembers of this process, and not what the program's variants say.",
        "tests/capture/test_dynamic.py::test_only_what_varies_is_symbolic",
        lambda tracing: known_changes(tracing.dynamic, tracing.path_of),
    ),
    Patch(
        (f"{_BUILDER}.wrap_symint",),
        "An integer of more than 64 bits would become a symbol, which overflows.",
        "tests/end_to_end/dynamic/test_dynamic.py::test_integers_beyond_64_bits_are_constants",
        always(larger_are_constants),
    ),
    Patch(
        (f"{_BUILDER}.wrap_symfloat",),
        "-0.0 and 0.0 would be one symbol, and `math.copysign(1, f)` wrong for one of them.",
        "tests/end_to_end/dynamic/test_symbolic_floats.py::test_zeros_keep_their_sign_where_the_tracer_fixes_them",
        always(zeros_are_constants),
    ),
    Patch(
        (f"{_BUILDER}.wrap_unspecialized_primitive", "torch:_as_tensor_fullprec"),
        "Numbers drawn from Python's `random` would be traced as float64, and what is computed with them would be so too.",
        "tests/runtime/settings/test_options.py::test_numbers_that_are_drawn_have_the_dtype_of_numbers",
        always(drawn_in_default_dtype),
        versions=("2.15",),
    ),
    Patch(
        (f"{_V}.torch:TorchInGraphFunctionVariable.call_function",),
        "Operators that return aliases, or have no fake implementation, would stand in graphs.",
        "tests/capture/test_custom_operators.py::test_fullgraph_says_what_is_missing",
        always(broken_at_operators),
    ),
    Patch(
        ("torch.utils._triton:has_triton",),
        "Where there is no GPU, launches of Triton kernels would be no launches for Dynamo.",
        "tests/end_to_end/test_triton_kernels.py::test_one_graph_equal_to_eager_and_stored",
        always(kernels_known),
    ),
)
"""While Dynamo traces one frame."""

AROUND: tuple[Patch[None], ...] = (
    Patch(
        ("torch._subclasses.meta_utils:MetaTensorDescriber.__init__",),
        "References to the tensors of the call would stay until the garbage collector comes by, and torch refuses to swap such tensors.",
        "tests/capture/test_patched_torch.py::test_nothing_refers_to_the_tensors_of_a_call_afterwards",
        always(release_references.descriptions_forgotten),
    ),
    Patch(
        ("torch._guards:TracingContext.__init__",),
        "So would the guards' weak references.",
        "tests/capture/test_patched_torch.py::test_nothing_refers_to_the_tensors_of_a_call_afterwards",
        always(release_references.guarded_tensors_forgotten),
    ),
)
"""While a call is captured, by Dynamo and after it."""

__all__ = ["AROUND", "PATCHES", "Tracing"]
