"""Text into numbers: pure readers that name what they could not read."""
