"""torch's private names are imported by adapters only, so that what a new torch moves is one diff."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
FOLDERS = ("precast", "capture", "lowering", "codegen", "artifact_store", "runtime")
PRIVATE = ("torch._dynamo", "torch._functorch", "torch._subclasses", "torch._guards", "torch.fx.experimental")
PRIVATE_C = ("torch._C._dynamo", "torch._C._functorch")
ADAPTERS = "capture/adapters/"
EXCEPTIONS = {
    "eval_frame.py": "the runtime's adapter: the frame evaluation hook and the C guards, without the tracer",
    ("global_state.py", "torch_state.py"): "asks in each check whether a functorch transform is at work, without the tracer",
}


def _named(path: Path) -> set[str]:
    """The private names that a file imports or reaches by attributes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            found.add(str(node.args[0].value))
    return {name for name in found if name.startswith((*PRIVATE, *PRIVATE_C))}


def test_private_names_of_torch_are_imported_by_adapters_only() -> None:
    files = {path.relative_to(ROOT).as_posix(): _named(path) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}
    allowed = {name for names in EXCEPTIONS for name in ((names,) if isinstance(names, str) else names)}
    elsewhere = {file: names for file, names in files.items() if names and not file.startswith(ADAPTERS)}
    assert {file for file in elsewhere if file.rpartition("/")[2] not in allowed or not file.startswith("runtime/")} == set()
    assert all(name.startswith(PRIVATE_C) for names in elsewhere.values() for name in names)
    assert len(elsewhere) == len(EXCEPTIONS)


def test_adapters_import_nothing_of_precasts() -> None:
    for path in sorted((ROOT / ADAPTERS).glob("*.py")):
        imports = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        assert "precast" not in {(node.module or "").partition(".")[0] for node in imports}
