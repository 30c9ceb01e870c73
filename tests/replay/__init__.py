"""A fixed set of programs whose generated code, keys and guard sets are digested: a change of any of them is seen, and has to be meant."""
