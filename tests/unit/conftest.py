"""Settings of the property tests: a machine that is busy with something else is no failure."""

from hypothesis import settings

settings.register_profile("seatrial", deadline=None)
settings.load_profile("seatrial")
