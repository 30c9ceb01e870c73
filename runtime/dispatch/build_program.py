"""Programs are built here and nowhere else: what each of the three kinds consists of is read off one function.

* `entry_program`: what users call. What continues its frames after graph breaks (`Resumes`) and what it calls between its graphs
  (`Callees`) become programs as well.
* `_resumed_program`: what continues a frame after a graph break.
* `_callee_program`: a function that programs call between their graphs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from precast.artifact_store.format.guards import Guard
from precast.artifact_store.format.records import ResumeRecord
from precast.runtime.dispatch.callee_programs import Callees, Found, group_of
from precast.runtime.dispatch.dispatcher import Dispatcher, Slow, Upgraded
from precast.runtime.dispatch.resume_programs import Resumes
from precast.runtime.frames.entry import Entry
from precast.runtime.frames.lambda_lift import Shell
from precast.runtime.programs.identity import Identity, Settings, entry_identity, resumed_identity
from precast.runtime.programs.program import Program, ProgramHooks

Built = tuple[Program, Callable[..., Any]]
"""A program, and its dispatcher: what is called with the arguments."""
OnBuild = tuple[Callable[[], None], ...]


def entry_program(
    entry: Entry, settings: Settings, extra_guards: Sequence[Guard], slow: Callable[[Program], Slow], upgraded: Upgraded | None = None
) -> Built:
    """The program that users call by `entry`, and its dispatcher. `slow`: from the program to what finds what no guard table knows.

    `extra_guards` hold for each variant, beside those that are stored. `upgraded`: told when a native dispatcher takes over.
    """
    identity = entry_identity(entry, settings)
    callees = Callees(group_of(settings, _callee_program), identity.key)
    on_build = (callees.attend,)
    resumes = _resumes(identity, settings, on_build)
    dispatcher = Dispatcher(entry)
    hooks = ProgramHooks(
        resume=resumes,
        around=callees.around,
        parts=(resumes.programs, callees.programs),
        on_build=on_build,
        on_reset=(resumes.reset, callees.reset, dispatcher.forget),
        on_refresh=(dispatcher.forget,),
        on_binding=dispatcher.remember,
        on_compile=dispatcher.begin,
    )
    program = Program(entry, identity, settings, hooks, extra_guards)
    return program, dispatcher.start(program, slow(program), upgraded)


def _resumes(root: Identity, settings: Settings, on_build: OnBuild) -> Resumes:
    """The `resume` hook of the program `root`, whose programs tell `on_build` what the root tells."""
    return Resumes(partial(_resumed_program, root, settings, on_build))


def _resumed_program(
    root: Identity,
    settings: Settings,
    on_build: OnBuild,
    resumes: Resumes,
    record: ResumeRecord,
    code: types.CodeType,
    function: types.FunctionType,
    shell: Shell | None,
) -> Built:
    """What continues a frame of `root` after a graph break. What follows its own breaks, `resumes` makes as well."""
    entry = Entry(function)
    identity = resumed_identity(root, record, code)
    settings.store.relate(root.key, identity.key)
    dispatcher = Dispatcher(entry)
    hooks = ProgramHooks(
        resume=resumes,
        on_build=on_build,
        on_reset=(dispatcher.forget,),
        on_refresh=(dispatcher.forget,),
        on_binding=dispatcher.remember,
        on_compile=dispatcher.begin,
    )
    program = Program(entry, identity, settings, hooks, shell=shell, is_part=True)
    return program, dispatcher.start(program, program.call)


def _callee_program(found: Found, loaded: Callable[[], None]) -> Built:
    """A function that programs call between their graphs, and what a trampoline calls. `loaded`: told that code of it is loaded."""
    resumes = _resumes(found.identity, found.settings, (loaded,))
    dispatcher = Dispatcher(found.entry)
    hooks = ProgramHooks(
        resume=resumes,
        parts=(resumes.programs,),
        on_build=(loaded,),
        on_reset=(resumes.reset, dispatcher.forget),
        on_refresh=(dispatcher.forget,),
        on_binding=dispatcher.remember,
        on_compile=dispatcher.begin,
    )
    program = Program(found.entry, found.identity, found.settings, hooks, shell=found.shell, is_part=True)
    return program, found.shell.receiver(dispatcher.start(program, program.call))


__all__ = ["Built", "entry_program"]
