"""Build files: which programs to compile, with which signatures, for which targets. See docs/build-file.md."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.place import folder_of

log = logging.getLogger("precast.driver")
Signature = tuple[tuple[Any, ...], dict[str, Any]]
_TOP = {"program", "store", "targets", "path", "evidence", "recorded"}
_PROGRAM = {"factory", "arguments", "name", "mode", "options", "targets", "dynamic_shapes", "evidence", "recorded"}
_PROGRAM |= {"train", "loss", "optimizer"}


class BuildFileError(Exception):
    """The build file, or a factory that it names, is not right. The message says where and what to do."""


@dataclass(frozen=True)
class ProgramSpec:
    """One [[program]]: `factory` is "pkg.mod:function"; the rest is passed on to `precast.precompile`.

    `evidence`: whether its artifacts are tried, and say so (`evidence.py`).
    `recorded`: files and folders of calls that were recorded where the program is served, absolute: they are signatures, too.
    `train`: the calls record gradients, so that the artifacts hold backward graphs.
    `updates`: the factory makes an optimiser, and what is compiled are the updates of its steps (`update_job.py`).
    `label` is the `name=` of `precast.compile`, a part of the program key, and None where the file gives no name; `name` is for people.
    """

    factory: str
    name: str
    where: str
    label: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    targets: tuple[str, ...] = ("cpu:native",)
    dynamic_shapes: Mapping[str, Any] | None = None
    recorded: tuple[str, ...] = ()
    evidence: bool = False
    train: bool = False
    updates: bool = False


@dataclass(frozen=True)
class BuildFile:
    """A whole file. `store` is absolute (it is written relative to the file), or None; `path` goes in front of sys.path."""

    programs: tuple[ProgramSpec, ...]
    store: str | None
    path: tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """A program that its factory made."""

    spec: ProgramSpec
    callable: Callable[..., Any]
    signatures: tuple[Signature, ...]


def read(source: str) -> BuildFile:
    """The build file at path `source`, or for "pkg.mod:factory" a build of that one program. Raises BuildFileError."""
    if not source.endswith(".toml") and ":" in source:
        return BuildFile((ProgramSpec(source, source.partition(":")[2], source),), None, (str(Path.cwd()),))
    path = Path(source)
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BuildFileError(f"{source}: cannot be read ({error.strerror}); give a TOML file or pkg.mod:factory") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        other = "" if source.endswith(".toml") else "; give a TOML file or pkg.mod:factory"
        raise BuildFileError(f"{source}: not valid TOML: {error}{other}") from error
    return parse(content, source, path.resolve().parent)


def parse(content: Mapping[str, Any], source: str, folder: Path) -> BuildFile:
    """Check a decoded build file. `source` names it in messages; relative paths start at `folder`."""
    _known(content, _TOP, source)
    tables = content.get("program")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise BuildFileError(f"{source}: needs at least one [[program]] table")
    default_targets = _texts(content, "targets", source) or ("cpu:native",)
    default = _Default(default_targets, _paths(content, "recorded", source, folder), _flag(content, "evidence", source) or False)
    programs = tuple(
        spec for number, table in enumerate(tables, 1) for spec in _programs(table, f"{source}: program {number}", default, folder)
    )
    names = [program.name for program in programs]
    for name in names:
        if names.count(name) > 1:
            raise BuildFileError(f"{source}: two programs are called {name!r}; give each its own `name`")
    store = _text(content, "store", source)
    if store is not None:
        try:
            store = str(folder_of(store, folder))
        except StoreError as error:
            raise BuildFileError(f"{source}: {error}") from error
    extra = _texts(content, "path", source) or (".",)
    return BuildFile(programs, store, tuple(str(folder / entry) for entry in extra))


def load(spec: ProgramSpec, path: Sequence[str] = ()) -> Loaded:
    """Call the program's factory. Raises BuildFileError for a factory that is missing, fails, or answers something else."""
    module_name, _, function_name = spec.factory.partition(":")
    for entry in reversed([entry for entry in path if entry not in sys.path]):
        sys.path.insert(0, entry)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        looked = f" (looked in {', '.join(path)} and sys.path)" if path else ""
        raise BuildFileError(f"{spec.where}: cannot import {module_name}: {error}{looked}") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        close = difflib.get_close_matches(function_name, [name for name, value in vars(module).items() if callable(value)], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BuildFileError(f"{spec.where}: {module_name} has no function {function_name!r}{hint}")
    _check_arguments(spec, factory)
    if not spec.evidence:
        return _loaded(spec, factory(**spec.arguments))
    from precast.building.evidence import seeded  # which imports torch

    with seeded():
        return _loaded(spec, factory(**spec.arguments))


def _check_arguments(spec: ProgramSpec, factory: Any) -> None:
    """Raises BuildFileError where the factory cannot be called with the arguments that the file gives it."""
    try:
        parameters = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # written in C: the call will say
    try:
        parameters.bind(**spec.arguments)
    except TypeError as error:
        said = f"{spec.where}: factory {spec.factory}{parameters}: {error}"
        raise BuildFileError(f"{said}; its arguments stand in a build file, as `arguments = {{ … }}`") from error


def _loaded(spec: ProgramSpec, made: Any) -> Loaded:
    if spec.updates:
        if not (hasattr(made, "param_groups") and callable(getattr(made, "step", None))):
            raise BuildFileError(f"{spec.where}: factory {spec.factory} must return an optimiser, and returned {_short(made)}")
        return Loaded(spec, made.step, ())
    shape = "must return (callable, [(args, kwargs), …])"
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], (list, tuple))):
        raise BuildFileError(f"{spec.where}: factory {spec.factory} {shape}, and returned {_short(made)}")
    signatures = []
    for number, signature in enumerate(made[1], 1):
        if not (
            isinstance(signature, tuple)
            and len(signature) == 2
            and isinstance(signature[0], (tuple, list))
            and isinstance(signature[1], dict)
        ):
            raise BuildFileError(
                f"{spec.where}: signature {number} of factory {spec.factory} is not (args, kwargs) but {_short(signature)}"
            )
        signatures.append((tuple(signature[0]), dict(signature[1])))
    if hasattr(made[0], "_precast_site"):
        raise BuildFileError(
            f"{spec.where}: factory {spec.factory} returned a compiled program; return the callable, and give its name, mode, options here"
        )
    if spec.recorded:
        signatures += _recorded(spec, made[0], signatures)
    if not signatures:
        none = ", and no calls of it are recorded" if spec.recorded else ""
        raise BuildFileError(f"{spec.where}: factory {spec.factory} returned no signatures{none}; there is nothing to compile")
    return Loaded(spec, made[0], tuple(signatures))


def _recorded(spec: ProgramSpec, program: Callable[..., Any], own: Sequence[Signature]) -> list[Signature]:
    """Signatures of the calls that were recorded of the program and are none of its `own`. A file that is not there has none yet."""
    from precast.building.recorded import recorded_signatures  # needs torch, which reading a build file does not

    there = [path for path in spec.recorded if Path(path).exists()]
    for path in spec.recorded:
        if path not in there:
            log.warning("%s: nothing is recorded yet: there is no %s", spec.where, path)
    try:
        return recorded_signatures(there, program, spec.label, own, spec.name)
    except OSError as error:
        raise BuildFileError(f"{spec.where}: recorded calls cannot be read: {error.filename}: {error.strerror}") from error


def _programs(table: Mapping[str, Any], where: str, default: _Default, folder: Path) -> Iterator[ProgramSpec]:
    """The program of one table, and those of its loss and its optimiser, which are called by its name and have its targets and options."""
    spec = _program(table, where, default, folder)
    yield spec
    for part in ("loss", "optimizer"):
        factory = _text(table, part, where)
        if factory is None:
            continue
        if not all(factory.partition(":")[::2]):
            raise BuildFileError(f'{where}: {part} = "pkg.mod:function" names a factory, not {factory!r}')
        if not spec.train:
            raise BuildFileError(f"{where}: `{part}` is of a program that trains: add train = true")
        name = f"{spec.name}.{part}"
        shared: dict[str, Any] = {"mode": spec.mode, "options": spec.options, "targets": spec.targets, "train": True}
        yield ProgramSpec(factory, name, f"{where} ({name})", **shared, updates=part == "optimizer")


def _program(table: Mapping[str, Any], where: str, default: _Default, folder: Path) -> ProgramSpec:
    _known(table, _PROGRAM, where)
    factory = _text(table, "factory", where)
    if factory is None or not all(factory.partition(":")[::2]):
        raise BuildFileError(f'{where}: needs factory = "pkg.mod:function"')
    arguments, options = table.get("arguments", {}), table.get("options")
    if not isinstance(arguments, dict) or not isinstance(options, (dict, type(None))):
        raise BuildFileError(f"{where}: `arguments` and `options` are tables, for instance options = {{ freeze = true }}")
    if options is not None and "mode" in table:
        raise BuildFileError(f"{where}: `mode` and `options` exclude one another: a mode is a set of options (see `precast options`)")
    shapes = table.get("dynamic_shapes")
    if not isinstance(shapes, (dict, type(None))):
        raise BuildFileError(f'{where}: `dynamic_shapes` is a table, for instance dynamic_shapes = {{ x = {{ 0 = "batch" }} }}')
    label = _text(table, "name", where)
    name = label or factory.partition(":")[2]
    targets = _texts(table, "targets", where) or default.targets
    given = _flag(table, "evidence", where)
    train = _flag(table, "train", where) or False
    if train and given:
        raise BuildFileError(f"{where}: `evidence` is of answers, and `train` programs are not tried yet; leave one of them out")
    evidence = not train and (default.evidence if given is None else given)
    recorded = _paths(table, "recorded", where, folder) or default.recorded
    mode = _text(table, "mode", where)
    return ProgramSpec(factory, name, f"{where} ({name})", label, arguments, mode, options, targets, shapes, recorded, evidence, train)


@dataclass(frozen=True)
class _Default:
    """What the file says for all programs that do not say otherwise."""

    targets: tuple[str, ...]
    recorded: tuple[str, ...]
    evidence: bool


def _known(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), 1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise BuildFileError(f"{where}: unknown key {key!r}; {hint}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value == "":
        raise BuildFileError(f"{where}: {key} is empty; give it a value, or leave it out")
    if value is not None and not isinstance(value, str):
        raise BuildFileError(f"{where}: {key} must be a text, not {_short(value)}")
    return value


def _flag(table: Mapping[str, Any], key: str, where: str) -> bool | None:
    value = table.get(key)
    if value is not None and not isinstance(value, bool):
        raise BuildFileError(f"{where}: {key} is true or false, not {_short(value)}")
    return value


def _paths(table: Mapping[str, Any], key: str, where: str, folder: Path) -> tuple[str, ...]:
    """One path or a list of them, relative to the file's folder."""
    value = table.get(key, [])
    listed = {key: [value] if isinstance(value, str) else value}
    return tuple(str(folder / Path(path).expanduser()) for path in _texts(listed, key, where))


def _texts(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise BuildFileError(f"{where}: {key} must be a list of texts, not {_short(value)}")
    return tuple(value)


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else f"{text[:77]}…"
