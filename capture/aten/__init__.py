"""The adapters of AOTAutograd: from Dynamo's graph to a functional graph of ATen operators."""
