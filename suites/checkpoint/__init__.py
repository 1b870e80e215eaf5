"""Training survives: killed at its worst moments and restored, it is bit for bit the run that was never killed."""
