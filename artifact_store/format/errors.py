"""What can go wrong in the store, each with a sentence that says what, where and what to do."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was asked (unwritable folder, full disk, unknown layout). The message says what to do."""


class RecordError(ValueError):
    """Bytes that are not a record this version can use. Base of the three reasons below; each is a miss, never a crash."""


class DamagedRecord(RecordError):
    """Truncated, bit-flipped or malformed: belongs in quarantine."""


class ForeignRecord(RecordError):
    """Never was a precast record."""


class FutureFormat(RecordError):
    """Written by a newer precast: left in place, because the newer one may still use it."""


class Untrusted(Exception):
    """Content that the trust policy does not let become code. The message says where it is from and why."""
