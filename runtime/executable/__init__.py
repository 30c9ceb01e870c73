"""One shared object: opening it, its calling convention, its kernels' images, and calling it."""
