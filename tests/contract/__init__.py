"""What every target must keep."""
