"""The table of raw memory reads that the native checker runs, recorded from a call that hit."""
