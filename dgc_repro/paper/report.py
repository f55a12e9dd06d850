"""``python -m dgc_repro.paper``: make pages and figures again from published runs, without torch.

Without arguments everything under results/ is made again into reproduced/published/, with their overview.
``--publish``, for maintainers, writes into results/ itself. With folders, such as
results/gravac/small/table2, only these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dgc_repro.errors import UserError
from dgc_repro.paper import index, pool
from dgc_repro.paper.publish import artifacts_in, is_published, other_scales, rebuild
from dgc_repro.paper.screen import console_of_width, show
from dgc_repro.progress import Progress, duration

REPORT = Path("reproduced") / "published"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rebuild each artifact and print its screen. One that fails is reported, and the others go on: exit code
    2 at the end."""
    parser = argparse.ArgumentParser(prog="python -m dgc_repro.paper", description=__doc__)
    parser.add_argument(
        "folder", nargs="*", type=Path, help="folders of artifacts, pools, or results/ (default)"
    )
    parser.add_argument("--publish", action="store_true", help="write into the folders themselves")
    given = parser.parse_args(arguments)
    asked = given.folder or [Path("results")]
    folders = [artifact for folder in asked for artifact in _below(folder)]
    if not folders:
        print(f"{asked[0]}: no artifact below it; give results/ or a folder of it", file=sys.stderr)
        return 2
    print(f"{len(folders)} artifacts, about {duration(len(folders) * 2.5)}", flush=True)
    failed = []
    with Progress("report", len(folders)) as progress:
        for number, folder in enumerate(folders, start=1):
            into = folder if given.publish else REPORT.joinpath(*folder.parts[-3:])
            try:
                page = rebuild(folder, into)
            except (UserError, OSError) as error:
                failed.append(folder)
                print(f"error: {folder}: {error}", file=sys.stderr, flush=True)
            else:
                if len(folders) < 3:
                    others = other_scales(folder, folder.resolve().parents[2])
                    show(page, console_of_width(), into, others)
            progress.advance(now=f"{number} of {len(folders)}, {'/'.join(folder.parts[-3:])}")
    if not given.folder:
        index.write(Path("results") if given.publish else REPORT)
    place = "their folders" if given.publish else REPORT
    print(f"written: {len(folders) - len(failed)} artifacts, to {place}", flush=True)
    if failed:
        print(f"not rebuilt: {', '.join(map(str, failed))}", file=sys.stderr)
    return 2 if failed else 0


def _below(folder: Path) -> list[Path]:
    """The artifact itself, those of a pool, or all below a root."""
    if is_published(folder):
        return [folder]
    pools = sorted(path.parent for path in folder.rglob(pool.VERDICTS_FILE))
    return [artifact for place in pools for artifact in artifacts_in(place)]
