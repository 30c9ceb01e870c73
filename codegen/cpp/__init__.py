"""C++ loops for one kernel."""
