"""The documents say what the code does."""

from __future__ import annotations

import pytest

from seatrial import cli


def test_the_page_of_checks_is_what_the_command_prints(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["checks"]) == 0
    page = (request.config.rootpath / "docs" / "checks.md").read_text()
    assert page == capsys.readouterr().out, "write it anew: seatrial checks > docs/checks.md"
