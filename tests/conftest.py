"""Shared by all tests: an error while compiling is an error, and not a fall-back to eager that then agrees with eager."""

import os

import hypothesis

os.environ.setdefault("PRECAST_STRICT", "1")

# Where the inputs are to be the same each time (continuous integration), hypothesis draws the same examples, too.
hypothesis.settings.register_profile("repeatable", derandomize=True, print_blob=True)
if os.environ.get("PRECAST_TEST_SEED"):
    hypothesis.settings.load_profile("repeatable")
