"""The files of the AWS command line, `~/.aws/credentials` and `~/.aws/config`, which obstore does not read: a profile's keys and region."""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import NamedTuple


class Profile(NamedTuple):
    """What a profile says; empty where it says nothing."""

    key: str = ""
    secret: str = ""
    token: str = ""
    region: str = ""


def read(name: str | None, *, wanted: bool) -> Profile:
    """The profile `name`, else that of AWS_PROFILE, else `default`. Keys in the environment go first, unless the URL names a profile.

    Raises ValueError where a profile was named and is not there, or holds no keys (roles and single sign-on are not followed: export keys).
    """
    if not wanted or (name is None and os.environ.get("AWS_ACCESS_KEY_ID")):
        return Profile()
    chosen = name or os.environ.get("AWS_PROFILE") or "default"
    keys = _section("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", chosen)
    more = _section("AWS_CONFIG_FILE", "~/.aws/config", chosen if chosen == "default" else f"profile {chosen}")
    both = {**more, **keys}
    found = Profile(
        both.get("aws_access_key_id", ""), both.get("aws_secret_access_key", ""), both.get("aws_session_token", ""), both.get("region", "")
    )
    if (name or os.environ.get("AWS_PROFILE")) and not found.key:
        raise ValueError(
            f"the AWS profile {chosen!r} is not there or holds no keys (roles and single sign-on are not followed): "
            "`aws configure export-credentials --format env` prints variables to set"
        )
    return found


def _section(variable: str, default: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or default).expanduser()
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}") from None  # its text, with keys in it, is not shown
    return dict(parser[section]) if parser.has_section(section) else {}
