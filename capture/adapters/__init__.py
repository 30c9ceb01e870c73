"""torch's private names that capture uses, one module for each subsystem of torch: a new torch is a change of these, and of the patches."""
