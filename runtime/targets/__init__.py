"""What an artifact runs on, and what this machine can run."""
