"""``python -m dgc_repro.paper``: `report`, or one line where its libraries are not installed."""

from __future__ import annotations

import sys

from dgc_repro.errors import MissingExtra, needing_repro

if __name__ == "__main__":
    try:
        with needing_repro("python -m dgc_repro.paper"):
            from dgc_repro.paper.report import main
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; the same command makes all pages again", file=sys.stderr)
        sys.exit(130)
