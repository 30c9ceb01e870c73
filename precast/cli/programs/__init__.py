"""Commands about programs: build, check, explain, tune, options, demo and bench."""
