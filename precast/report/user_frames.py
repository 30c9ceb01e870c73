"""The user's own lines in an exception's traceback, for reports: without the frames of precast, torch and Python."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(str(Path(_PATHS[name]).resolve()) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OWN_FOLDER = str(Path(__file__).parents[1]) + "/"
_DEEPEST = 12


def frames_of(error: BaseException, libraries: bool = True) -> list[str]:
    """The lines below the exception's own, empty where no code but precast's and Python's import was on the way.

    `libraries`: where no code of the user's was on the way, show that of libraries.
    """
    lines: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if link is not error:
            lines.append(f"  caused by {_name(link)}")
        lines += _syntax(link) if isinstance(link, SyntaxError) else _lines(link, libraries)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return lines


def _name(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)[-1:]).strip() or type(error).__name__


def _syntax(error: SyntaxError) -> list[str]:
    """The file, the line and the caret below it."""
    return [f"  {line}" for text in traceback.format_exception_only(type(error), error)[:-1] for line in text.splitlines()]


def _lines(error: BaseException, libraries: bool) -> Iterator[str]:
    outside = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_precasts(frame.filename)]
    users = [frame for frame in outside if not frame.filename.startswith(_LIBRARIES)]
    if not users and not libraries:
        return
    shown = users + [frame for frame in outside[-1:] if frame not in users] if users else outside  # its end, be it in a library
    if len(shown) > _DEEPEST:
        yield f"  … {len(shown) - _DEEPEST} calls further out"
    for frame in shown[-_DEEPEST:]:
        yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
        if frame.line:
            yield f"    {frame.line}"


def _is_precasts(file: str) -> bool:
    return file.startswith(("<frozen ", _OWN_FOLDER)) or "/importlib/" in file


__all__ = ["frames_of"]
