"""Facts about programs that passes ask for: effects, dependencies, liveness, aliases."""
