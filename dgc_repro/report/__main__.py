"""``python -m dgc_repro.report <results/paper/artifact/scale>``: rebuild it and print it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dgc_repro.errors import UserError
from dgc_repro.report.publish import rebuild, show
from dgc_repro.report.render import console_of_width


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild each folder and print it; 2 and one line for a folder that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m dgc_repro.report",
        description="Rebuild published tables and figures from their records, without torch.",
    )
    parser.add_argument(
        "folder",
        nargs="*",
        type=Path,
        help="such as reproduced/dynamic/table1/quick; default: all that results/ holds",
    )
    given = parser.parse_args(arguments).folder
    published = sorted(path.parent for path in Path("results").glob("*/*/*/records"))
    if not (given or published):
        print(
            "report: nothing under results/; give a folder, such as reproduced/dynamic/table1/quick",
            file=sys.stderr,
        )
        return 2
    for folder in given or published:
        try:
            show(rebuild(folder), console_of_width())
        except (UserError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
