"""Artifacts from one place to another, by hand: what is chosen, what is missing there, and the transfer, which a killed process resumes."""
