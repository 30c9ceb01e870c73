"""One stored artifact: whether it fits this machine, opening its graphs, and launching them, by CUDA graph where that is wanted."""
