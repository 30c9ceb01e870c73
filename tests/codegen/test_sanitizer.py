"""AddressSanitizer over generated code: a read past a tensor's end is reported, code that stays inside is not. `make asan` runs more."""

from __future__ import annotations

import subprocess

import pytest

import precast
from precast.runtime.settings.options import key_options, merge_options
from tests.ops.asan import NOTICED, main, under_sanitizer

HAS = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False).stdout.strip().startswith("/")


@pytest.mark.skipif(not HAS, reason="g++ has no libasan here")
def test_a_read_past_the_end_is_reported() -> None:
    seen = under_sanitizer("--inside", "past the end")
    assert "inside" in seen.stdout and "not noticed" not in seen.stdout
    assert seen.returncode != 0 and NOTICED in seen.stderr


@pytest.mark.skipif(not HAS, reason="g++ has no libasan here")
def test_a_few_rows_are_clean(capfd: pytest.CaptureFixture[str]) -> None:
    seen = under_sanitizer("--inside", "rows", "--every", "400", "--most", "4")
    assert seen.returncode == 0 and "4 rows, 0 failures" in seen.stdout, seen.stdout + seen.stderr[-3000:]


def test_a_process_without_the_sanitizer_is_told_how_to_start() -> None:
    with pytest.raises(precast.OptionError, match="LD_PRELOAD"):
        precast.compile(lambda x: x, options={"sanitize": "address"})
    with pytest.raises(precast.OptionError, match="is not one of"):
        precast.compile(lambda x: x, options={"sanitize": "thread"})


def test_only_instrumented_programs_have_another_key() -> None:
    plain = merge_options()
    assert "sanitize" not in key_options(plain)
    assert key_options({**plain, "sanitize": "address"}) == {**key_options(plain), "sanitize": "address"}


def test_the_command_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "--every" in capsys.readouterr().out
