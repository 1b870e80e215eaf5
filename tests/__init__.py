"""The tests of seatrial."""
