"""What the scripts' command lines share: lists and counts from text, and how a script ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch.record import MOST_WORKERS
from dgc_repro.launch.replay import RanksFailed
from dgc_repro.launch.typed import nearest


def chosen(
    name: str, text: str | None, default: Sequence[str], known: Mapping[str, Any] | Sequence[str]
) -> Sequence[str]:
    """Words separated by commas, each one that is known. Raises UserError."""
    if text is None:
        return default
    words = text.split(",")
    for word in words:
        if word not in known:
            raise UserError(f"--{name}: no {word!r}; {nearest(word, known)}")
    return words


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


def run(name: str, main: Callable[[], object], stopped: str) -> None:
    """Call a script's main; what the user can mend is one line and exit code 2. ``stopped``: what is to be
    said after Ctrl-C."""
    try:
        main()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except RanksFailed as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped; {stopped}")
