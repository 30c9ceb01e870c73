"""What all endpoints share: retries, deadlines, a circuit breaker, counters, and threads in which no caller gets stuck."""
