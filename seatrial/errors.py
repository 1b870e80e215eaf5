"""The errors that a user meets: each says what, where, expected, observed and the next step."""

from __future__ import annotations


class SeatrialError(Exception):
    """The base of all errors that this package raises on purpose."""


class UsageError(SeatrialError):
    """The command, the profile or the thresholds are wrong; the message lists every mistake."""


class AccessError(SeatrialError):
    """The target could not be reached or refused us: the harness's fault or its rights', not the cluster's."""


class InconclusiveError(SeatrialError):
    """Something could not be measured as required."""


class LeakError(SeatrialError):
    """Something that this run started is still alive."""
