"""The native runtime under AddressSanitizer and UBSan: errors planted in its C sources are reported, and tests of its tables are silent.

`make asan` runs more files (`tests/ops/native_asan.py`).
"""

from __future__ import annotations

import subprocess

import pytest

from precast.runtime.native import build
from tests.ops.native_asan import FILES, NEEDS_REUSE, PLANTED, ROOT, SAMPLE, run_tests, unreported

HAS = all(
    subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout.strip().startswith("/")
    for name in ("libasan.so", "libubsan.so")
)
needs_sanitizers = pytest.mark.skipif(not HAS, reason="gcc has no libasan and libubsan here")


@needs_sanitizers
def test_planted_errors_are_reported() -> None:
    assert not unreported(tuple(PLANTED))


@needs_sanitizers
def test_a_sample_is_clean() -> None:
    seen = run_tests(SAMPLE)
    assert seen.code == 0 and not seen.reports, seen.output[-3000:] + seen.reports[:4000]
    assert " passed" in seen.output


def test_the_files_are_there() -> None:
    assert all((ROOT / file).is_file() for file in FILES)
    assert any(NEEDS_REUSE in (ROOT / file).read_text() for file in FILES)
    assert all((build.SOURCES / planted.file).read_text().count(planted.old) == 1 for planted in PLANTED.values())


def test_an_instrumented_build_is_another_record(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = build.record_name()
    monkeypatch.setenv(build.SANITIZE, "address")
    assert build.record_name() != plain
    monkeypatch.delenv(build.SANITIZE)
    assert build.record_name() == plain
