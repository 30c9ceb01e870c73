"""The passes of the scheduler: each takes a program and gives a program."""
