"""What people read: explanations, diagrams, trace folders, logs of a compile."""
