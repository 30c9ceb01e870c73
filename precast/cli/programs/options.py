"""`precast options`: what can be set, what each setting does, and its default: options, modes and log topics."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import click

from precast.cli.output import Output, errors_to_json, json_option

if TYPE_CHECKING:
    from precast.runtime.settings.options import Option


@click.command(short_help="List compile options, modes and the topics of PRECAST_LOGS.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
@errors_to_json
def options(names: tuple[str, ...], as_json: bool) -> None:
    """List compile options, modes and the topics of PRECAST_LOGS; with NAME only those options.

    Options go into precast.compile(options={...}), a mode into precast.compile(mode=...). What is part of the key has to be the same where
    a program is built and where it is served.
    """
    from precast.runtime.common.log import TOPICS
    from precast.runtime.settings.options import MODE_NOTES, MODES, OPTIONS  # they know torch, and `precast --help` loads this file

    unknown = [name for name in names if name not in OPTIONS]
    if unknown:
        close = difflib.get_close_matches(unknown[0], OPTIONS, 1)
        hint = f"did you mean {close[0]!r}?" if close else "`precast options` lists them"
        raise click.UsageError(f"there is no option {unknown[0]!r}; {hint}")
    out = Output(as_json)
    shown = [OPTIONS[name] for name in (names or sorted(OPTIONS))]
    modes = {} if names else {name: {"sets": MODES[name], "doc": MODE_NOTES[name]} for name in MODES}
    topics = {} if names else dict(TOPICS)
    out.data({"options": [_record(option) for option in shown], "modes": modes, "log_topics": topics})
    for option in shown:
        keyed = "part of the key" if option.changes_key else "not part of the key"
        out.text(f"{option.name}  ({_type(option)}, default {option.default!r}, {keyed})")
        out.text(f"    {option.doc}")
        if option.instead:
            out.text(f'    In torch.compile(backend="precast"): {option.instead}.')
    if not names:
        out.text("\nmodes")
        for name, mode in modes.items():
            sets = ", ".join(f"{key}={value!r}" for key, value in MODES[name].items())
            out.text(f"{name}  ({sets or 'sets nothing'})\n    {mode['doc']}")
        out.text("\ntopics of PRECAST_LOGS")
        for name, what in topics.items():
            out.text(f"{name}\n    {what}")


def _type(option: Option) -> str:
    return " | ".join(map(repr, option.choices)) if option.choices else option.type.__name__


def _record(option: Option) -> dict[str, object]:
    return {
        "name": option.name,
        "type": option.type.__name__,
        "default": option.default,
        "choices": list(option.choices),
        "changes_key": option.changes_key,
        "doc": option.doc,
        "in_torch_compile": option.instead or "the same",
    }
