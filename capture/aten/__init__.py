"""Tracing with AOTAutograd: from Dynamo's graph to a functional graph of ATen operators, and the patches that this needs."""
