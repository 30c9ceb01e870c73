"""Programs and their variants: the cache of variants, misses, limits, fallback to eager."""
