"""Build files, and the jobs and workers that build what they list."""
