"""A joint graph, of a forward and a backward pass together: rewritten as a whole, and cut into its halves."""
