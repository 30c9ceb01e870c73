"""`precast build` on a terminal: a bar that names what is being done, then the report in its place."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

from tests.artifact_store.sample import fill

ROOT = Path(__file__).parents[3]


def on_a_terminal(*words: str, columns: int = 160, **settings: str) -> str:
    """All that a `precast` command writes where stdout and stderr are one terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-m", "precast.cli", *words],
        cwd=ROOT,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color", **settings},
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    os.close(ours)
    assert process.wait(timeout=300) == 0, written
    return written.decode(errors="replace")


def test_a_bar_and_then_the_report(tmp_path: Path) -> None:
    seen = on_a_terminal("build", "tests.precast.cli.app:sine", "--store", str(tmp_path / "store"), "--target", "cpu:x86-64-v2")
    doing, bar = seen.find("sine: compiling signature 1 of 1 for cpu:x86-64-v2"), seen.find("━")
    report, summary = seen.find("sine\tsignature 1\tcpu:x86-64-v2\tcompiled"), seen.find("1 compiled, 0 there already, 0 failed")
    assert 0 <= bar < report and 0 <= doing < report < summary, seen
    assert "\x1b[2K" in seen[doing:report], "the bar is wiped away before the report"
    assert "signature 1 of 1" not in seen[report:]


def test_bold_is_a_style(tmp_path: Path) -> None:
    """On a terminal the heading is bold, and with NO_COLOR nothing is."""
    fill(tmp_path / "store")
    words = ("ls", "--store", str(tmp_path / "store"))
    assert "\x1b[1m" in on_a_terminal(*words)
    for setting in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_a_terminal(*words, **setting)
        assert "PROGRAM" in plain and "\x1b[" not in plain
