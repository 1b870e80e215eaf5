"""The trial as its user meets it."""
