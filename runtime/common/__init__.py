"""What every room of the runtime uses: errors, logs, locks, background work."""
