"""What the benchmarks' command lines share: flags, lists from text, time left, and how a script ends."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from dgc_repro.bench.ranks import RanksFailed
from dgc_repro.bench.record import MOST_WORKERS
from dgc_repro.errors import UserError
from dgc_repro.launch.typed import nearest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def parser(about: str | None) -> argparse.ArgumentParser:
    """With the flags that every benchmark has. ``about``: the module's docstring, shown as it is."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--output", type=Path, help="folder of the tables (default: reproduced/)")
    made.add_argument("--publish", action="store_true", help="write the tables to results/")
    return made


def output_of(given: argparse.Namespace, name: str) -> Path:
    """The folder that holds a folder of tables for each machine."""
    output: Path | None = given.output
    return output or REPOSITORY / ("results" if given.publish else "reproduced") / name


def words(name: str, text: str | None, known: Collection[str]) -> list[str] | None:
    """Words separated by commas, each one of ``known``; None as it is. Raises UserError."""
    found = text.split(",") if text else None
    for word in found or ():
        if word not in known:
            raise UserError(f"--{name}: no {word!r}; {nearest(word, list(known))}")
    return found


def worker_counts(text: str) -> list[int]:
    """Numbers of workers separated by commas. Raises UserError."""
    counts = []
    for word in text.split(","):
        try:
            counts.append(int(word))
        except ValueError as error:
            raise UserError(f"--workers: whole numbers, got {word!r}") from error
    if not all(2 <= count <= MOST_WORKERS for count in counts):
        raise UserError(f"--workers: from 2 to {MOST_WORKERS}, got {text}")
    return counts


def at_least_one(repeats: int) -> int:
    """Raises UserError."""
    if repeats < 1:
        raise UserError(f"--repeats: a whole number from 1, got {repeats}")
    return repeats


def how_long(seconds: float) -> str:
    """A rounded duration: ``about 40 s``, ``about 6 minutes``."""
    return (
        f"about {max(1.0, seconds):.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} minutes"
    )


class TimeLeft:
    """Prints how long a command takes: before the first piece by ``expected`` (seconds by piece, on two idle
    cores), then by how much longer or shorter the finished pieces have taken."""

    def __init__(self, command: str, expected: Mapping[str, float]) -> None:
        self._command = command
        self._left = dict(expected)
        self._expected_so_far = 0.0
        self._began = time.monotonic()
        total = sum(self._left.values())
        print(f"{command}: {how_long(total)} expected on two idle cores", flush=True)

    def done(self, piece: str, label: str = "") -> None:
        """A piece is finished: print what is left of the others."""
        self._expected_so_far += self._left.pop(piece)
        if self._left:
            ratio = (time.monotonic() - self._began) / self._expected_so_far
            seconds = ratio * sum(self._left.values())
            print(f"{self._command}: {label or piece} done, {how_long(seconds)} left", flush=True)


def run(name: str, main: Callable[[], object], stopped: str) -> None:
    """Call a script's main; a user's mistake is one line and exit code 2. ``stopped``: printed after
    Ctrl-C."""
    try:
        main()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except RanksFailed as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped; {stopped}")
