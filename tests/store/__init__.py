"""Programs whose recorded artifacts name their module: what lies here keeps its place."""
