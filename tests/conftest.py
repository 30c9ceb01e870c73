"""Shared by all tests: an error while compiling is an error, and not a fall-back to eager that then agrees with eager."""

import os

os.environ.setdefault("PRECAST_STRICT", "1")
