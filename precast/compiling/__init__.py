"""One miss from capture to a published artifact: the only room that sees all of capture, lowering and codegen."""
