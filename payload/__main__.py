"""``python -m seatrial.payload``: the same command line as the zip's."""

from .main import main

raise SystemExit(main())
