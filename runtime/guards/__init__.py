"""Guards at call time: the predicates, and the engines that evaluate them."""
