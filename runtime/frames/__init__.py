"""Python frames: the entry of a program, its rewritten code, and how calls are intercepted."""
