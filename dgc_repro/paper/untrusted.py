"""Read files of runs and pools that a stranger may have made. An error is one line that names the file.

files.py bounds what is read. `refuse_odd` and the shapes check the values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgc_repro import files
from dgc_repro.checked import refuse
from dgc_repro.errors import CONTROL, UserError
from dgc_repro.names import with_current_names

DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, OSError, RuntimeError),
    MemoryError,
)
"""What reading a broken record may raise."""
MOST_KEY = 1000  # letters
Section = Mapping[Any, Any] | None


@dataclass
class Shape:
    """The types that readers expect in a run's config: sections are mappings, wrappers are words."""

    seed: int
    experiment: Section
    compressor: Section
    wrap: Sequence[str] | None
    wrapper: Section
    policy: Section
    model: Section
    dataset: Section
    optimizer: Section
    schedule: Section
    train: Section
    exchange: Section
    launch: Section
    network: Section
    stopping: Section
    scale: Mapping[Any, Any] | str | None
    paths: Section
    sink: Section


@dataclass
class NumbersShape:
    """The types that readers expect in the sections ``model`` and ``launch``."""

    blocks: Sequence[int] | int | None
    layers: int | None
    width: int | None
    hidden: int | None
    workers: int | None


@dataclass
class RecordShape:
    """The types that readers expect in the summary and the environment of a run."""

    parameters: float | None
    before: Sequence[Mapping[Any, Any]] | None
    busy_cores: float | None


@contextlib.contextmanager
def one_line(
    folder: Path, what: str = "not the record of a run", fix: str = "run again"
) -> Iterator[None]:
    """Raise UserError for whatever reading a broken record, or values of other types, may raise. ``what``: is
    wrong with the folder, in words; ``fix``: what to do."""
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{folder}: {what} ({reason}); {fix}") from error


def checked_config(config: Any) -> dict[str, Any]:
    """Return a recorded config with the names that keys have now. Raises ValueError, which names the key, for
    one that no run has: readers would stumble over it."""
    if not isinstance(config, dict) or "seed" not in config:
        raise ValueError("no seed")
    refuse_odd(config)
    refuse(Shape, config)
    for section in ("model", "launch"):
        refuse(NumbersShape, config.get(section) or {})
    return with_current_names(config)


def refuse_odd(value: Any, place: tuple[str, ...] = ()) -> None:
    """Raise ValueError, which names the ``place``, for a value that no record has: a whole number beyond an
    int64, more than `files.MOST_DEPTH` levels, keys of several types or of more than `MOST_KEY` letters,
    control characters, another type."""
    if reason := _odd(value, len(place)):
        raise ValueError(f"{'.'.join(place)}: {reason}")
    if isinstance(value, list):
        for one in value:
            refuse_odd(one, (*place, "0"))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            if len(name := str(key)) > MOST_KEY:
                where = ".".join((*place, "a key"))
                raise ValueError(f"{where}: at most {MOST_KEY:,} letters, got {len(name):,}")
            refuse_odd(name, (*place, "a key"))
            refuse_odd(one, (*place, name))


def _odd(value: Any, level: int) -> str:
    """Why `refuse_odd` refuses a value, what is in it left out; empty where it does not."""
    if level > files.MOST_DEPTH:
        return "too many levels"
    if isinstance(value, str):
        has_control = CONTROL.search(value)
        return f"text without control characters, got {value!r}" if has_control else ""
    if isinstance(value, int):
        is_large = not -files.MOST_INTEGER <= value < files.MOST_INTEGER
        return "a whole number within 64 bits, got a larger one" if is_large else ""
    if isinstance(value, Mapping):
        kinds = {*map(type, value)}  # JSON of the mapping is sorted by its keys
        is_mixed = len(kinds) > 1 or not kinds <= {str, int, float, bool}
        return "keys that are words, or all numbers, got others" if is_mixed else ""
    is_plain = value is None or isinstance(value, float | list)
    return "" if is_plain else f"a plain value, got one of type {type(value).__name__}"


def parsed(path: Path, parse: Callable[[bytes], Any], what: str) -> Any:
    """Return the content of a file. UserError names a file that ``parse`` cannot read as ``what``."""
    try:
        return parse(files.content(path))
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: {what}, got something else ({reason}); run again") from error


def json_object(content: bytes) -> dict[str, Any]:
    """Return an object in JSON. Raises ValueError for another value, and for values that no record has."""
    value = files.parsed_json(content)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object, got {type(value).__name__}")
    refuse_odd(value)
    return value


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line. UserError names the file and a broken line."""
    try:
        yield from files.json_lines(path)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path}: {error}; run again from its checkpoint") from error
