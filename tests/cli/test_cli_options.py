"""`precast options`: every option, mode and log topic, for people and as JSON."""

from __future__ import annotations

import json

from click.testing import CliRunner

from precast.cli import main
from precast.runtime.log import TOPICS
from precast.runtime.options import MODES, OPTIONS


def test_it_lists_everything() -> None:
    text = CliRunner().invoke(main, ["options"]).stdout
    for name in (*OPTIONS, *MODES, *TOPICS):
        assert f"\n{name}" in f"\n{text}"
    data = json.loads(CliRunner().invoke(main, ["options", "--json"]).stdout)
    assert {option["name"] for option in data["options"]} == set(OPTIONS)
    assert data["modes"]["max-autotune"]["sets"] == dict(MODES["max-autotune"]) and set(data["log_topics"]) == set(TOPICS)


def test_one_option() -> None:
    text = CliRunner().invoke(main, ["options", "freeze"]).stdout
    assert text.startswith("freeze  (bool, default False)") and "epilogue_fusion" not in text
    missing = CliRunner().invoke(main, ["options", "freze"])
    assert missing.exit_code == 1 and "no option 'freze'" in missing.stderr
