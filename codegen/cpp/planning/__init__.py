"""How the loops of a C++ kernel are planned, before they are written: phases and sections, borders apart, windows, and who updates what."""
