"""What the benchmarks' command lines share: flags, values from text, and how a script ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn, TypeVar

from dgc_repro.bench.record import MOST_WORKERS
from dgc_repro.bench.tables import Machine
from dgc_repro.bench.world import RanksFailed
from dgc_repro.errors import UserError
from dgc_repro.launch.typed import nearest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
Value = TypeVar("Value")


class Parser(argparse.ArgumentParser):
    """Of whose mistakes the caller makes one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(message.removeprefix("argument "))


def parser(about: str | None) -> Parser:
    """With the flags that every benchmark has. ``about``: the module's docstring, shown as it is."""
    made = Parser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, help="folder of the tables (default: reproduced/)")
    made.add_argument("--publish", action="store_true", help="write the tables to results/")
    return made


def folder_of(given: argparse.Namespace, name: str, machine: Machine) -> Path:
    """The machine's folder of tables, made if need be."""
    output = given.output or REPOSITORY / ("results" if given.publish else "reproduced") / name
    folder: Path = output / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def reader(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """A type of argparse that says what a ValueError does, its field aside."""

    def checked(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).partition(": ")[2]) from error

    return checked


def listed(read: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    """Values separated by commas."""
    return reader(lambda text: [read(word) for word in text.split(",")])


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """A word of ``known``."""

    def read(word: str) -> str:
        if word not in known:
            raise ValueError(f"word: no {word!r}; {nearest(word, list(known))}")
        return word

    return read


def number_in(low: int, high: float = float("inf")) -> Callable[[str], int]:
    """A whole number in a range."""
    allowed = f"from {low}" + (f" to {high:g}" if high < float("inf") else "")

    def read(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise ValueError(f"number: a whole number {allowed}, got {text!r}")
        return int(text)

    return read


whole = reader(number_in(1))
worker_counts = listed(number_in(2, MOST_WORKERS))


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
