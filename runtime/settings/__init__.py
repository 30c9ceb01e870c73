"""What users set: options, backends, stances, guard filters."""
