"""seatrial: the acceptance trial of GPU clusters."""

__version__ = "0.1.0"
