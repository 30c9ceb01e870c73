"""Trust: what has to hold before stored bytes may become code."""
