"""Reckon the minutes of every artifact at scale ``quick`` for the table of ``reproduce --help``.

``python -m dgc_repro.predict.minutes`` (maintainers; about 10 minutes on an idle core) writes `FILE` into the
folder of this machine in results/bench/. Steps of each kind of run are timed as ``plan=true device=cpu``
does, and multiplied by their number; an artifact that trains nothing is made once. All times are those of
the CPU, so that other work on the machine does not count. The times of published runs are recorded with
these runs (`paper/times.py` reads both).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from dgc_repro.bench.tables import Machine
from dgc_repro.launch.paths import artifacts
from dgc_repro.launch.reproduction import Reproduction, artifact_node, prepared
from dgc_repro.paper.times import FILE
from dgc_repro.predict.counted import Counts, counted, hours_here
from dgc_repro.progress import Progress
from dgc_repro.results import RESULTS

SCALE = "quick"


def main() -> None:
    """Time the artifacts, and write the table."""
    place, machine = place_of(__doc__)
    names = [name for name in artifacts() if SCALE in artifact_node(name).sizes]
    kinds: dict[Counts, float] = {}
    rows = []
    with Progress("minutes", len(names)) as progress:
        for name in names:
            asked = prepared([name, f"scale={SCALE}"])
            seconds = sum(_seconds(asked, kinds)) if asked.is_trained else _made(name)
            rows.append({"artifact": name, "runs": len(asked.jobs), "seconds": round(seconds, 1)})
            progress.advance(now=f"{name}: {seconds:.0f} s")
    table = pd.DataFrame([{**row, **asdict(machine)} for row in rows])
    table.to_csv(place / FILE, index=False, lineterminator="\n")
    print(f"written to {place / FILE}")


def place_of(about: str | None) -> tuple[Path, Machine]:
    """Read the command line of a table for maintainers: the folder of this machine, and the machine."""
    parser = argparse.ArgumentParser(description=about)
    output = RESULTS / "bench"
    parser.add_argument("--output", type=Path, default=output, help="default: %(default)s")
    machine = Machine.here()
    place: Path = parser.parse_args().output / machine.slug
    place.mkdir(parents=True, exist_ok=True)
    return place, machine


def _seconds(asked: Reproduction, kinds: dict[Counts, float]) -> Iterator[float]:
    """The seconds of each run; steps of one kind are timed once."""
    for job in asked.jobs:
        counts = counted(job.config)
        if counts not in kinds:
            kinds[counts] = 3600 * hours_here(job.config, time.process_time)
        yield kinds[counts]


def _made(name: str) -> float:
    """The CPU seconds of making an artifact, with the start of its process."""
    with tempfile.TemporaryDirectory() as folder:
        places = [f"paths.{key}={folder}/{key}" for key in ("runs", "reproduced")]
        words = [sys.executable, "-m", "dgc_repro", "reproduce", name, f"scale={SCALE}", *places]
        begin = sum(os.times()[2:4])
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        return sum(os.times()[2:4]) - begin


if __name__ == "__main__":
    main()
