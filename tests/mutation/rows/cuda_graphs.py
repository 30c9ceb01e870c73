"""CUDA graphs, by a device that is played: when there is a capture, which one answers, what is copied, what is forgotten."""

from tests.mutation.table import Mutant

GRAPHS = "tests/runtime/cuda_graphs/test_cuda_graphs.py"
POLICY = "runtime/cuda_graphs/graphs.py"
RECORDING = "runtime/cuda_graphs/recording.py"

ROWS = (
    Mutant(
        "one warm-up is enough",
        POLICY,
        "self._watch(size, values) and size.warm_ups >= WARM_UPS:",
        "self._watch(size, values) and size.warm_ups >= WARM_UPS - 1:",
        GRAPHS,
    ),
    Mutant("a ring has one capture more", POLICY, "clones = len(size.recordings) >= RING", "clones = len(size.recordings) > RING", GRAPHS),
    Mutant(
        "several captures copy their outputs",
        POLICY,
        "if clones and any(recording.clones for recording in size.recordings):",
        "if False:",
        GRAPHS,
        equivalent="one that copies is never in use, so another is asked for only where threads take turns between two locks",
    ),
    Mutant("a failed capture is tried for ever", POLICY, "if self._failures >= ATTEMPTS:", "if self._failures > 10**6:", GRAPHS),
    Mutant("a failed capture is final", POLICY, "if self._failures >= ATTEMPTS:", "if self._failures >= 1:", GRAPHS),
    Mutant(
        "captures that read old places stay",
        POLICY,
        "            if not recording.reads(words, stamp):\n",
        "            if False:\n",
        GRAPHS,
    ),
    Mutant(
        "an input that the graph writes is copied",
        POLICY,
        "if self.spec.inputs[i].mutated or self.spec.inputs[i].position is None]",
        "if self.spec.inputs[i].position is None]",
        GRAPHS,
    ),
    Mutant(
        "a weight that moves is copied",
        POLICY,
        "if self.spec.inputs[i].mutated or self.spec.inputs[i].position is None]",
        "if self.spec.inputs[i].mutated]",
        GRAPHS,
    ),
    Mutant(
        "moves are never too many",
        POLICY,
        "if self._moves > MOVES and self.player.plays",
        "if self._moves > 100 * MOVES and self.player.plays",
        GRAPHS,
    ),
    Mutant(
        "moves that pay are too many", POLICY, "and self.player.plays < PLAYS_A_MOVE * self._moves:", "and self.player.plays >= 0:", GRAPHS
    ),
    Mutant(
        "numbers have one capture for all", POLICY, "*(word_of(values[i]) for i in self._numbers))", "*(0 for i in self._numbers))", GRAPHS
    ),
    Mutant("sizes are without limit", POLICY, "        if count > SIZES:\n            return None\n", "", GRAPHS),
    Mutant(
        "symbolic sizes are captured against the wish",
        POLICY,
        "elif self._numbers and options.skip_dynamic:",
        "elif not self._numbers and options.skip_dynamic:",
        GRAPHS,
    ),
    Mutant("an obstacle does not hinder", POLICY, "return None if obstacle else size", "return size", GRAPHS),
    Mutant(
        "outputs are left in work memory", POLICY, "size.homes = homes_of(raw, values)", "size.homes = tuple(None for _ in raw)", GRAPHS
    ),
    Mutant(
        "random numbers are not looked for",
        POLICY,
        "size.drawn.append(size.device.drawn() - before if self._may_draw else 0)",
        "size.drawn.append(0)",
        GRAPHS,
    ),
    Mutant(
        "the host's look at the generator is overlooked",
        POLICY,
        'if size.draws == "yes" and size.device.drawn() != before:',
        'if size.draws == "no" and size.device.drawn() != before:',
        GRAPHS,
    ),
    Mutant(
        "dropped captures are not retired",
        POLICY,
        "recording.device.retire([*own, *recording.buffers.values()])",
        "recording.device.retire([])",
        GRAPHS,
    ),
    Mutant(
        "copied inputs' buffers are not retired",
        POLICY,
        "recording.device.retire([*own, *recording.buffers.values()])",
        "recording.device.retire([*own])",
        GRAPHS,
    ),
    Mutant("prepared weights' version does not count", RECORDING, "return self.stamp == stamp and all(", "return all(", GRAPHS),
    Mutant(
        "a moved input answers from the old place",
        RECORDING,
        "all(a == b or i in self.buffers for i, (a, b)",
        "all(a == b or i >= 0 for i, (a, b)",
        GRAPHS,
    ),
    Mutant(
        "an output that is held is written", RECORDING, "return not self.clones and self.holders() != self.idle", "return False", GRAPHS
    ),
    Mutant(
        "views of an output do not hold it",
        RECORDING,
        "(torch._C._storage_Use_Count(s._cdata), sys.getrefcount(s), s.data_ptr())",
        "(0, sys.getrefcount(s), s.data_ptr())",
        GRAPHS,
    ),
    Mutant(
        "storage objects of an output do not hold it",
        RECORDING,
        "(torch._C._storage_Use_Count(s._cdata), sys.getrefcount(s), s.data_ptr())",
        "(torch._C._storage_Use_Count(s._cdata), 0, s.data_ptr())",
        GRAPHS,
    ),
    Mutant(
        "an output whose memory was replaced is written", RECORDING, "sys.getrefcount(s), s.data_ptr())", "sys.getrefcount(s), 0)", GRAPHS
    ),
    Mutant("gaps of a copied input are left out", RECORDING, "span = 1 + sum((n - 1) * step", "span = sum((n - 1) * step", GRAPHS),
    Mutant(
        "python: only the first moving input is copied",
        RECORDING,
        "                flat(buffer).copy_(flat(values[i]))\n",
        "                flat(buffer).copy_(flat(values[i]))\n                break\n",
        GRAPHS,
    ),
    Mutant(
        "python: inputs are copied after the replay",
        RECORDING,
        "                flat(buffer).copy_(flat(values[i]))\n            recording.replay()\n",
        "                pass\n            recording.replay()\n"
        "            for i, buffer in recording.buffers.items():\n                flat(buffer).copy_(flat(values[i]))\n",
        GRAPHS,
    ),
    Mutant("python: another stream does not wait", RECORDING, "        with recording.device.entered():\n", "        if True:\n", GRAPHS),
    Mutant(
        "python: captures of another shape answer",
        RECORDING,
        "and all(shape_of(values[i]) == shape for i, shape in recording.shapes.items())",
        "",
        GRAPHS,
    ),
    Mutant(
        "python: those that copy come first",
        RECORDING,
        "self._recordings.sort(key=lambda r: r.clones)",
        "self._recordings.sort(key=lambda r: not r.clones)",
        GRAPHS,
    ),
    Mutant(
        "an output in an input begins at the input",
        RECORDING,
        "return reinterpret(values[output.input], output.size, output.stride, output.offset)",
        "return reinterpret(values[output.input], output.size, output.stride, 0)",
        GRAPHS,
    ),
    Mutant("copied outputs are not copied", RECORDING, "    if not clones:\n", "    if output is not None:\n", GRAPHS),
    Mutant(
        "homes: an output that is another one is captured",
        "runtime/cuda_graphs/output_buffers.py",
        "if shape_of(output) != shape_of(home) or",
        "if",
        GRAPHS,
    ),
    Mutant(
        "homes: outputs are not moved home",
        "runtime/cuda_graphs/output_buffers.py",
        "        flat(home).copy_(flat(output))",
        "        pass",
        GRAPHS,
    ),
    Mutant(
        "native: only the first moving input is copied",
        "runtime/native/src/cuda_replay.c",
        "!code && i < capture->copy_count; i++)",
        "!code && i < capture->copy_count && i < 1; i++)",
        GRAPHS,
    ),
    Mutant(
        "native: a capture in use answers",
        "runtime/native/src/cuda_replay.c",
        "|| (!capture->clones && in_use(capture))) return 0;",
        ") return 0;",
        GRAPHS,
    ),
    Mutant(
        "native: numbers are not compared",
        "runtime/native/src/cuda_replay.c",
        ": words[i] != capture->words[i]) return 0;",
        ": 0) return 0;",
        GRAPHS,
    ),
    Mutant("native: places are not compared", "runtime/native/src/cuda_replay.c", "&& address == capture->words[i];", ";", GRAPHS),
    Mutant(
        "native: shapes are not compared",
        "runtime/native/src/cuda_replay.c",
        "if (!shape_fits(&capture->shapes[i], words[capture->shapes[i].input])) return 0;",
        ";",
        GRAPHS,
    ),
    Mutant("native: the stamp is not compared", "runtime/native/src/cuda_replay.c", "if (!same) continue;", ";", GRAPHS),
    Mutant(
        "native: a storage's place is not compared",
        "runtime/native/src/cuda_replay.c",
        " || *h->place != h->data) return 1;",
        ") return 1;",
        GRAPHS,
    ),
    Mutant(
        "native: a storage's holders are not counted",
        "runtime/native/src/cuda_replay.c",
        "if (storage_holders(h->storage) != h->holders || Py_REFCNT",
        "if (Py_REFCNT",
        GRAPHS,
    ),
    Mutant(
        "native: another stream does not wait",
        "runtime/native/src/cuda_replay_order.c",
        "if (!code) code = order->call.wait(stream, order->event, 0);",
        "",
        GRAPHS,
    ),
    Mutant(
        "native: a full table of copies is launched twice",
        "runtime/native/src/cuda_replay_order.c",
        "        filled = 0;\n    }\n    return",
        "    }\n    return",
        GRAPHS,
    ),
    Mutant(
        "native: an output in an input begins at the input",
        "runtime/native/src/cuda_replay.c",
        "s->dim, s->sizes, s->strides, s->offset, &outputs[i]);",
        "s->dim, s->sizes, s->strides, 0, &outputs[i]);",
        GRAPHS,
    ),
    Mutant(
        "native: a thread keeps the context that it was lent",
        "runtime/native/src/cuda_replay_order.c",
        "if (other_context) order->call.context_set(other_context);",
        ";",
        GRAPHS,
    ),
)
