"""What belongs to one machine's store: leases and the log of uses."""
