"""The runtime: versions, keys of programs, options, limits, targets, digests of code, outputs that alias, prepared weights, dispatch."""

from tests.mutation.table import Mutant

PROGRAM = "tests/runtime/programs/test_program.py"
VERSIONS = f"{PROGRAM}::test_one_other_version_is_a_miss {PROGRAM}::test_artifacts_of_other_versions_are_kept_beside_ours"
REAL = "tests/artifact_store/test_released_artifacts.py::test_other_versions_miss"
TARGETS = "tests/runtime/targets/test_targets.py"
KEYS = "tests/runtime/programs/test_keys.py"
OUTPUTS = "tests/runtime/executable/test_graph_outputs.py"

ROWS = (
    # versions
    Mutant(
        "torch's version is not compared",
        "runtime/loading/compatibility.py",
        "if versions.torch != torch_minor():",
        "if not versions.torch:",
        f"{VERSIONS} {REAL}",
    ),
    Mutant(
        "of torch's version the major number counts", "runtime/common/supported_torch.py", '.split(".")[:2])', '.split(".")[:1])', f"{KEYS}"
    ),
    Mutant(
        "Python's version is not compared",
        "runtime/loading/compatibility.py",
        "if versions.python is not None and versions.python != python_minor():",
        "if versions.python is not None and not python_minor():",
        f"{VERSIONS} {REAL}",
    ),
    Mutant(
        "the lowering's version is not compared",
        "runtime/loading/compatibility.py",
        "if versions.lowering != LOWERING_VERSION:",
        "if not versions.lowering:",
        f"{VERSIONS} {REAL}",
    ),
    Mutant(
        "of Python's version the major number counts",
        "runtime/targets/versions.py",
        'return f"{sys.version_info.major}.{sys.version_info.minor}"',
        'return f"{sys.version_info.major}"',
        KEYS,
    ),
    Mutant(
        "code that was edited still fits",
        "runtime/loading/compatibility.py",
        "return why_unfit(manifest, elsewhere) or changed_code(manifest.digests, code)",
        "return why_unfit(manifest, elsewhere)",
        f"{PROGRAM}::test_code_that_was_edited_is_a_miss",
    ),
    # keys
    Mutant(
        "options are no part of the key",
        "runtime/programs/identity.py",
        "identity = repr((label or name, digest, sorted(key_options(options).items()), *more))",
        "identity = repr((label or name, digest, *more))",
        KEYS,
    ),
    Mutant(
        "code is no part of the key",
        "runtime/programs/identity.py",
        "identity = repr((label or name, digest, sorted(",
        "identity = repr((label or name, sorted(",
        KEYS,
    ),
    Mutant(
        "the name is no part of the key",
        "runtime/programs/identity.py",
        "identity = repr((label or name, digest,",
        "identity = repr((label, digest,",
        KEYS,
    ),
    Mutant(
        "the backend is no part of the key",
        "runtime/programs/identity.py",
        "more = (*((backend,) if backend else ()),",
        "more = (*(() if backend else ()),",
        KEYS,
    ),
    Mutant(
        "a namespace of one's own is no part of the key",
        "runtime/programs/identity.py",
        '*(("own namespace",) if own else ()))',
        "*(() if own else ()))",
        KEYS,
    ),
    Mutant(
        "the target is part of the key",
        "runtime/settings/options.py",
        'if OPTIONS[name].changes_key and name != "target"}',
        "if OPTIONS[name].changes_key}",
        KEYS,
    ),
    Mutant(
        "options that change no code are part of the key",
        "runtime/settings/options.py",
        "{name: options[name] for name in sorted(options) if OPTIONS[name].changes_key and",
        "{name: options[name] for name in sorted(options) if",
        KEYS,
    ),
    Mutant(
        "freeze changes no key",
        "runtime/settings/options.py",
        'instead="use precast.compile: torch\'s guards do not say that a weight has changed",',
        'changes_key=False, instead="",',
        KEYS,
    ),
    Mutant(
        "fallback_random changes no key",
        "runtime/settings/options.py",
        '"manual_seed, but other numbers than eager\'s.",',
        '"manual_seed, but other numbers than eager\'s.", changes_key=False,',
        KEYS,
    ),
    # options
    Mutant(
        "an option of another type is taken",
        "runtime/settings/options.py",
        "if type(value) is not option.type:",
        "if not isinstance(value, (option.type, int)):",
        KEYS,
    ),
    Mutant(
        "a choice that there is not is taken",
        "runtime/settings/options.py",
        "if option.choices and value not in option.choices:",
        "if option.choices and not value:",
        KEYS,
    ),
    Mutant(
        "a mode and options may be given together",
        "runtime/settings/options.py",
        "if mode is not None and options:",
        "if mode is None and options is None and fixed is None:",
        KEYS,
    ),
    Mutant(
        "a mode sets nothing",
        "runtime/settings/options.py",
        "merged.update(MODES[_known_mode(mode)] if mode is not None else {})",
        "_known_mode(mode) if mode is not None else None",
        KEYS,
    ),
    Mutant(
        "None is a value",
        "runtime/settings/options.py",
        "    for name, value in fixed.items():\n        if value is not None:",
        "    for name, value in fixed.items():\n        if name:",
        KEYS,
    ),
    Mutant(
        "options of torch's door that are torch's are taken",
        "runtime/settings/options.py",
        "        if option.instead:\n",
        "        if option.instead and not name:\n",
        "tests/runtime/settings/test_options.py::test_only_options_that_act_there_pass_torchs_door",
    ),
    Mutant(
        "cuda graphs are wanted by default",
        "runtime/settings/options.py",
        'if options["triton.cudagraphs"] else None',
        'if "triton.cudagraphs" in options else None',
        KEYS,
    ),
    # limits
    Mutant(
        "one more variant than the limit",
        "runtime/counting/tallies.py",
        "(0 if isolated else _stored[shared]) >= limit:",
        "(0 if isolated else _stored[shared]) > limit:",
        KEYS,
    ),
    Mutant(
        "isolated calls count together",
        "runtime/counting/tallies.py",
        "self.own + (0 if isolated else _stored[shared]) >= limit",
        "self.own + _stored[shared] >= limit",
        KEYS,
    ),
    Mutant(
        "what is kept in the process does not count",
        "runtime/counting/tallies.py",
        "            self.own += 1",
        "            pass",
        KEYS,
    ),
    Mutant("attempts in vain count as variants", "runtime/counting/tallies.py", "        if in_vain:\n            return\n", "", KEYS),
    Mutant(
        "the accumulated limit is one more",
        "runtime/counting/tallies.py",
        "if _all[shared] >= accumulated else",
        "if _all[shared] > accumulated else",
        KEYS,
    ),
    Mutant("a reset forgets its own count only", "runtime/counting/tallies.py", "        _stored.pop(shared, None)\n", "", KEYS),
    Mutant(
        "stores count together",
        "runtime/counting/tallies.py",
        "            _stored[shared] += 1",
        "            _stored[('', shared[1])] += 1",
        KEYS,
    ),
    # targets
    Mutant(
        "targets: images of a later GPU run",
        "runtime/targets/cuda.py",
        "if a < exact and a // 10 == capability[0] and a < _EXACT_SINCE]",
        "if a // 10 == capability[0] and a < _EXACT_SINCE]",
        TARGETS,
    ),
    Mutant(
        "targets: images of another generation run",
        "runtime/targets/cuda.py",
        "if a < exact and a // 10 == capability[0] and a < _EXACT_SINCE]",
        "if a < exact and a < _EXACT_SINCE]",
        TARGETS,
    ),
    Mutant(
        "targets: exact images run on the family",
        "runtime/targets/cuda.py",
        "and a // 10 == capability[0] and a < _EXACT_SINCE]",
        "and a // 10 == capability[0]]",
        TARGETS,
    ),
    Mutant(
        "targets: levels need none of their flags",
        "runtime/targets/cpu.py",
        "for name, needed in LEVELS if needed <= cpu_flags())",
        "for name, needed in LEVELS if needed & cpu_flags())",
        f"{TARGETS} {KEYS}",
    ),
    Mutant(
        "targets: of several GPUs the worst counts",
        "runtime/targets/cuda.py",
        "return min((steps.index(target)",
        "return max((steps.index(target)",
        KEYS,
    ),
    Mutant(
        "targets: any GPU's artifact serves",
        "runtime/targets/ladder.py",
        "return made is not None and not made.on_host and found in rules_of(found).at_hand()",
        "return made is not None and not made.on_host",
        TARGETS,
    ),
    # digests of code
    Mutant(
        "digest: constants do not count",
        "runtime/fingerprint/bytecode.py",
        'return f"{code.co_code.hex()}|{constants}|{names}',
        'return f"{code.co_code.hex()}|{names}',
        KEYS,
    ),
    Mutant(
        "digest: names do not count", "runtime/fingerprint/bytecode.py", "|{constants}|{names}|{counts}|", "|{constants}|{counts}|", KEYS
    ),
    Mutant(
        "digest: counts and flags do not count",
        "runtime/fingerprint/bytecode.py",
        "|{names}|{counts}|{code.co_exceptiontable.hex()}",
        "|{names}|{code.co_exceptiontable.hex()}",
        KEYS,
    ),
    Mutant(
        "digest: 0.0 is -0.0", "runtime/fingerprint/bytecode.py", "        return value.hex()", "        return repr(value + 0.0)", KEYS
    ),
    Mutant(
        "digest: 1 is True",
        "runtime/fingerprint/bytecode.py",
        'return f"{type(value).__name__}:{value!r}"',
        'return f"{value + 0 if isinstance(value, int) else value!r}"',
        KEYS,
    ),
    Mutant(
        "digest: code inside of code does not count",
        "runtime/fingerprint/bytecode.py",
        '        return f"<{_text(value)}>"',
        '        return f"<{value.co_name}>"',
        KEYS,
    ),
    Mutant(
        "digest: sets count by their order",
        "runtime/fingerprint/bytecode.py",
        '",".join(sorted(map(_constant, value)))',
        '",".join(map(_constant, value))',
        KEYS,
    ),
    # outputs
    Mutant(
        "outputs: a view begins at the storage's begin",
        "runtime/executable/calling_convention.py",
        "base.as_strided(size, stride, base.storage_offset() + offset)",
        "base.as_strided(size, stride, offset)",
        OUTPUTS,
    ),
    Mutant(
        "outputs: a view begins where its base does",
        "runtime/executable/calling_convention.py",
        "base.as_strided(size, stride, base.storage_offset() + offset)",
        "base.as_strided(size, stride, base.storage_offset())",
        OUTPUTS,
    ),
    Mutant(
        "outputs: an input is given back as a copy",
        "runtime/executable/calling_convention.py",
        "            return inputs[index]\n",
        "            return inputs[index].clone()\n",
        OUTPUTS,
    ),
    Mutant(
        "outputs: a view as another type begins at its base's element",
        "runtime/executable/calling_convention.py",
        "start = base.storage_offset() * base.element_size() // view.element_size()",
        "start = base.storage_offset()",
        OUTPUTS,
    ),
    Mutant(
        "outputs: a detached view keeps its history",
        "runtime/executable/calling_convention.py",
        "return view.detach() if output.detach else view",
        "return view",
        OUTPUTS,
    ),
    Mutant(
        "outputs: the grad mode is not set",
        "runtime/executable/calling_convention.py",
        "    torch._C._set_grad_enabled(bool(outputs[-1].value))\n",
        "",
        OUTPUTS,
    ),
    Mutant(
        "outputs: raw ones in another order are plain",
        "runtime/executable/calling_convention.py",
        'all(output.kind == "raw" and output.index == i for i, output',
        'all(output.kind == "raw" for i, output',
        OUTPUTS,
    ),
    Mutant(
        "inputs: sizes are read off in the order of the arguments",
        "runtime/executable/calling_convention.py",
        "values[i] = evaluate(item.read, values)",
        "values[i] = evaluate(item.read, list(args))",
        OUTPUTS,
    ),
    Mutant(
        "inputs: a float is its whole number",
        "runtime/executable/calling_convention.py",
        'if kind == "float":',
        'if kind == "double":',
        OUTPUTS,
    ),
    Mutant(
        "weights: another version is not noticed",
        "runtime/executable/graph_call.py",
        "0 if t.is_inference() else t._version)",
        "0)",
        OUTPUTS,
    ),
    Mutant(
        "weights: another storage is not noticed",
        "runtime/executable/graph_call.py",
        "(id(t), t.untyped_storage()._cdata,",
        "(id(t),",
        OUTPUTS,
    ),
    Mutant(
        "weights: what the graph writes is prepared, too",
        "runtime/executable/calling_convention.py",
        "strict=True) if not self.inputs[i].mutated)",
        "strict=True))",
        OUTPUTS,
    ),
)
