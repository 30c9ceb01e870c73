"""Doors that have to stay the only ones: where bytes become code, where artifacts are made, and where the store's layout is known."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
FOLDERS = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
OUTSIDE_THE_STORE = tuple(folder for folder in FOLDERS if folder != "artifact_store")

LOADERS = {
    *("marshal.loads", "marshal.load", "pickle.loads", "pickle.load", "torch.load", "dlopen", "CDLL", "PyDLL", "LoadLibrary"),
    *("ExtensionFileLoader", "load_dynamic", "_IMAGES", "exec", "eval"),
    *("cuModuleLoadData", "cuModuleLoadDataEx", "cuLibraryLoadData", "cuLinkAddData_v2"),
}
"""What turns bytes or a file into code. `_IMAGES` is the type of a library's function that takes its kernels' images."""

NOT_STORED = {
    "torch_libraries: ctypes.CDLL": "torch's own shared objects, which are open already",
    "no_op_guards: ctypes.CDLL": "likewise",
    "_checked: ctypes.CDLL": "this process itself, to look for AddressSanitizer",
    "driver_library: ctypes.CDLL": "CUDA's driver",
    "_Nvml.__init__: ctypes.CDLL": "NVML, which comes with the driver",
    "copy_kernel: driver.cuModuleLoadData": "PTX that is a constant of the source",
    "_disassembled: marshal.loads": "shows what this process has just captured, and does not run it",
    "_compiled: ctypes.CDLL": "what this process's compiler has just made, to measure it",
    "launch: ctypes.CDLL": "CUDA's driver",
    "launch: driver.cuModuleLoadData": "what this process has just compiled, to measure it",
    "compile_checker: exec": "guards of opened variants, which are made of trusted manifests only",
    "_as_torchs_own: exec": "a literal of the file",
    "_by_digest: exec": "likewise",
    "_value: eval": "an expression that Dynamo wrote for the traced frame",
    "function_of: exec": "a kernel that this process has rendered",
    "_collector: exec": "names of a code object, which are identifiers",
    "_forwarding_code: exec": "likewise",
    "trampoline: exec": "likewise",
    "Shell.function: exec": "likewise",
    "Shell.open: eval": "likewise",
}
"""Function and call -> what it loads, which never was in a store, or which is trusted already."""


def _functions(path: Path) -> Iterator[tuple[str, ast.AST, ast.Call]]:
    """Each call in a file, with the innermost function that it stands in and that function's name."""

    def walk(node: ast.AST, name: str, function: ast.AST) -> Iterator[tuple[str, ast.AST, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, child.name, function)
            elif isinstance(child, ast.FunctionDef):
                inside = f"{name}.{child.name}" if isinstance(node, ast.ClassDef) else child.name
                yield from walk(child, inside, child)
            else:
                if isinstance(child, ast.Call):
                    yield name, function, child
                yield from walk(child, name, function)

    yield from walk(ast.parse(path.read_text("utf-8")), "", ast.Module([], []))


def _sources(folders: tuple[str, ...]) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _loads(call: ast.Call) -> bool:
    """Whether the call names a loader: as the function, or as the text by which a driver's function is looked up."""
    function = ast.unparse(call.func)
    named = {function, function.rpartition(".")[2]} - ({"eval"} if "." in function else set())  # `model.eval()`
    named |= {arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return bool(named & LOADERS)


def _takes_trusted(function: ast.AST) -> bool:
    if not isinstance(function, ast.FunctionDef):
        return False
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return any(arg.annotation is not None and "Trusted[" in ast.unparse(arg.annotation) for arg in arguments)


def test_bytes_become_code_only_where_trusted_ones_are_taken() -> None:
    doors, others = set(), set()
    for path in _sources(FOLDERS):
        for name, function, call in _functions(path):
            if _loads(call):
                (doors if _takes_trusted(function) else others).add(f"{name}: {ast.unparse(call.func)}")
    assert others == set(NOT_STORED)
    assert {door.partition(":")[0] for door in doors} == {
        *("_code_object", "Library.__init__", "Library._hand_over_images"),
        *("_load", "link"),  # the native runtime; the driver's compiler of PTX
    }


def test_manifests_are_made_where_artifacts_are_published() -> None:
    made = {
        path.name for path in _sources(OUTSIDE_THE_STORE) for _, _, call in _functions(path) if ast.unparse(call.func) == "Manifest.make"
    }
    assert made == {"publish.py"}


LAYOUT = ("artifact_store.format.layout",)
TIERS = ("artifact_store.tiers.folder", "artifact_store.tiers.tier", "artifact_store.entries", "artifact_store.named_records")
PLACES = ("objects", "programs", "index", "leases", "quarantine")


def test_nobody_outside_the_store_knows_its_layout() -> None:
    found = set()
    for path in _sources(OUTSIDE_THE_STORE):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("precast.artifact_store"):
                named = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
                ours = {name.removeprefix("precast.") for name in named}
                if any(name == kept or name.startswith(f"{kept}.") for name in ours for kept in (*LAYOUT, *TIERS)):
                    found.add((path.name, ast.unparse(node)))
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                right = node.right.value if isinstance(node.right, ast.Constant) else None
                if right in PLACES or ast.unparse(node.left).endswith("store.root"):
                    found.add((path.name, ast.unparse(node)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(tuple(f"{p}/" for p in PLACES)):
                found.add((path.name, node.value))
    assert found == set()


def test_who_declares_content_trusted() -> None:
    """Each of these has compared a digest, or has made the content itself."""
    calls = [(name, ast.unparse(call.func)) for path in _sources(FOLDERS) for name, _, call in _functions(path)]
    assert {name for name, function in calls if function in ("admit", "admit_manifest", "admit_record", "made_here")} == {
        *("Store.trust", "Store.trusted_file", "Store.trusted_bytes", "NamedRecords.trusted"),
        *("MemoryBlobs.trust", "MemoryBlobs.trusted_file"),  # what this process has compiled and could not store
        *("admit_manifest", "admit_record", "made_here"),
        "loadable",  # images that the driver has just made of trusted text
    }
