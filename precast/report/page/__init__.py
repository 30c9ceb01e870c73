"""One artifact as a page that people show each other: its facts, its graph laid out, its memory over time, and their template."""
