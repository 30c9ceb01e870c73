"""The lowering: from a graph of ATen operators to scheduled loops, as a function of the graph, its symbols, options and target."""
