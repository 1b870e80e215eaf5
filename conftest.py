"""Names the plugins, so that a checkout works as the installed package does."""

pytest_plugins = ["seatrial.plugin", "seatrial.fixtures"]
