"""What the backends of all targets share: their protocol and options, the C++ toolchain, timing of candidates, facts about values."""
