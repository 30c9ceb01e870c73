"""The one row that adds the family: importing this file registers it."""

from precast.target_registry import Family, register_target

FAMILY = Family(
    "toy",
    runtime="tests.toy_target.rules:RULES",
    lowering="tests.toy_target.passes:TOY",
    codegen="tests.toy_target.backend:BACKEND",
    devices="the interpreter",
)

register_target(FAMILY)
