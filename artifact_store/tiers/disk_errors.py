"""What the disk refused, as sentences that say what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.tiers.owner import owner, user_name

IN_THE_WAY = (FileExistsError, NotADirectoryError, IsADirectoryError)


def elsewhere() -> str:
    """What to do about a folder that cannot be the store, as the rest of a sentence."""
    return f"choose another folder with --store or {layout.ENVIRONMENT}"


def advice(error: OSError | UnicodeDecodeError) -> str:
    """What to do about what the disk refused, as the rest of a sentence."""
    if isinstance(error, IN_THE_WAY):
        return f"move what is in the way, or {elsewhere()}"
    return f"{cure(error)}, or {elsewhere()}"


def cure(error: OSError | UnicodeDecodeError, root: Path | None = None) -> str:
    """The same where another folder is no answer. `root`: the store that it is about, which may be another user's."""
    whose = owner(root) if root is not None and getattr(error, "errno", None) in (errno.EACCES, errno.EPERM) else None
    if whose is not None and whose != os.geteuid():
        return f"the store belongs to {user_name(whose)}, and this is {user_name(os.geteuid())}: do this as that user"
    return _CURES.get(getattr(error, "errno", None) or 0, "check the permissions")


_CURES = {
    errno.ENOSPC: "make room (`precast prune`)",
    errno.EDQUOT: "the quota is used up: make room (`precast prune`)",
    errno.EROFS: "it is mounted read-only here: do this where it can be written",
    errno.EIO: "mend the disk",
}
