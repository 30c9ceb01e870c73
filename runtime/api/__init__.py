"""The functions that the facade exports."""
