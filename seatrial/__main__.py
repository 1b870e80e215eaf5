"""``python -m seatrial`` is the ``seatrial`` command."""

from seatrial.cli import main

raise SystemExit(main())
