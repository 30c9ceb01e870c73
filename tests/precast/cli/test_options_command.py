"""`precast options`: every option, mode and log topic, for people and as JSON."""

from __future__ import annotations

import json

from click.testing import CliRunner

from precast.cli.main import main
from precast.runtime.common.log import TOPICS
from precast.runtime.settings.options import MODES, OPTIONS


def test_it_lists_everything() -> None:
    text = CliRunner().invoke(main, ["options"]).stdout
    for name in (*OPTIONS, *MODES, *TOPICS):
        assert f"\n{name}" in f"\n{text}"
    data = json.loads(CliRunner().invoke(main, ["options", "--json"]).stdout)
    assert {option["name"] for option in data["options"]} == set(OPTIONS)
    assert data["modes"]["max-autotune"]["sets"] == dict(MODES["max-autotune"]) and set(data["log_topics"]) == set(TOPICS)


def test_one_option() -> None:
    text = CliRunner().invoke(main, ["options", "freeze"]).stdout
    assert text.startswith("freeze  (bool, default False, part of the key)") and "epilogue_fusion" not in text
    assert "not part of the key)" in CliRunner().invoke(main, ["options", "recompile_limit"]).stdout
    missing = CliRunner().invoke(main, ["options", "freez"])
    assert missing.exit_code == 2 and "no option 'freez'; did you mean 'freeze'?" in missing.stderr
