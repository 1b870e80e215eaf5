"""Each planted fault must be caught."""
