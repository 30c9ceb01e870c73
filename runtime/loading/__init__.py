"""From stored graphs to calls: opening what an artifact holds, and launching it, by CUDA graph where that is wanted."""
