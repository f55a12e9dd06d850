"""Keys of a sub-command (``workers=2..256``) among overrides of a run's config."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from dgc_repro.checked import Count, Positive, kind_of, within
from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import check_overrides, composed, nearest, sets
from dgc_repro.launch.paths import members

Reader = Callable[[str, str], Any]
Keys = Mapping[str, tuple[Reader, Any] | tuple[Reader, Any, str]]
"""What reads each key of a sub-command, its default, and what it means (else its reader's docstring)."""
WIDTH = 79
"""Columns of a page of help."""
MOST_WORKERS = 65536
MOST_DIGITS, MOST_LEVELS = 1000, 32  # of an argument
UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9}


def refuse_extremes(arguments: Sequence[str]) -> None:
    """Raise UserError for a number with more digits, or lists with more levels, than Python reads."""
    for argument in arguments:
        key = argument.partition("=")[0]
        if digits := re.search(rf"[0-9_]{{{MOST_DIGITS + 1},}}", argument):
            raise UserError(f"{key}: a number of at most {MOST_DIGITS} digits, got {digits[0]}")
        level = 0
        for letter in argument:
            level += (letter in "[{(") - (letter in "]})")
            if level > MOST_LEVELS:
                raise UserError(f"{key}: at most {MOST_LEVELS} levels of lists, got more")


def read(
    arguments: Sequence[str], command: str, keys: Keys, groups: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """(values of own keys, overrides). ``groups``: keys of a run at the top. Answers ``--help``. Raises
    UserError for what is neither."""
    if {"-h", "--help"} & set(arguments):
        show_help(f"{command} [key=value ...]", keys, of_a_run=bool(groups))
    own = {key: default for key, (_, default, *_) in keys.items()}
    overrides = []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not (equals and key):
            raise UserError(f"{argument}: settings are written key=value")
        if key in keys:
            own[key] = keys[key][0](key, text)
        elif key.lstrip("+~").split(".")[0].split("@")[0] in groups:
            overrides.append(argument)
        else:
            shown = [*keys, *["those of a run (--help)"] * bool(groups)]
            raise UserError(f"{key}: no such key; {nearest(key, [*keys, *groups], shown)}")
    if overrides:
        check_overrides(overrides)
    return own, overrides


def show_help(
    usage: str, keys: Keys, *, of_a_run: bool = False, more: Iterable[str] = ()
) -> NoReturn:
    """Print the usage of a sub-command, a line for each of its keys and ``more`` lines, and end.
    ``of_a_run``: whether it takes keys of a run too."""
    print(f"usage: python -m dgc_repro {usage}\n")
    rows = []
    for key, (reader, default, *said) in keys.items():
        meaning = " ".join("".join(said or [reader.__doc__ or ""]).replace("`", "").split())
        is_switch = isinstance(default, bool)
        value = str(default).lower() if is_switch else "" if default is None else str(default)
        is_list = isinstance(default, list) and len(default) > 1
        rows.append((f"{key}={'' if is_list else value.strip('[]')}", meaning))
    print("\n".join(in_columns(rows, 20)))
    if of_a_run:
        print("\nOther keys are those of a run (python -m dgc_repro --help).")
    for line in more:
        print(line)
    sys.exit()


def in_columns(rows: Iterable[tuple[str, str]], wide: int) -> Iterator[str]:
    """Lines of two columns, the right one wrapped; a longer name at the left has a line of its own."""
    indent = (wide + 2) * " "
    for name, text in rows:
        left = f"  {name:<{wide}}"
        if len(name) >= wide:
            yield f"  {name}"
            left = indent
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=left, subsequent_indent=indent, break_on_hyphens=False
        ) or [left.rstrip()]


def full_size(overrides: Sequence[str]) -> list[str]:
    """With the model as wide as its own YAML has it, where neither the width nor a scale is given: the
    default scale, which trains in minutes, slims models."""
    if sets(overrides, "model.width") or sets(overrides, "scale"):
        return list(overrides)
    target = composed(overrides)["model"]["_target_"]
    widths = [file["width"] for file in members("model") if file["_target_"] == target]
    return [*overrides, *(f"model.width={width}" for width in widths[:1])]


def workers_range(key: str, text: str) -> list[int]:
    """``8``, ``2,4,8``, or ``2..256``: 2, 4, 8, ... and the end."""
    like = "a number of workers, a list as 2,4,8, or doublings as 2..256"
    found = _range(key, text, like, 2, {"": 1})
    if found[-1] > MOST_WORKERS:
        raise UserError(f"{key}: {like}, at most {MOST_WORKERS}, got {text!r}")
    return found


def sizes_range(key: str, text: str) -> list[int]:
    """``64..64mb``: 64, 256, 1024, ... bytes, and the end; or a list."""
    return _range(key, text, "bytes as 64..64mb or 1kb,1mb", 4, UNITS)


def _range(key: str, text: str, like: str, factor: int, units: Mapping[str, int]) -> list[int]:
    """Whole numbers from 1, with units, and ascending ranges of them in steps of ``factor``."""
    found: set[int] = set()
    for piece in text.strip("[]").split(","):
        ends = []
        for end in piece.split(".."):
            parts = re.fullmatch(r"(\d+)\s*([a-z]*)", end.strip().lower())
            if parts is None or parts[2] not in units or int(parts[1]) < 1:
                raise UserError(f"{key}: {like}, from 1, got {text!r}")
            ends.append(int(parts[1]) * units[parts[2]])
        number, last = ends[0], ends[-1]
        if len(ends) > 2 or number > last:
            raise UserError(f"{key}: {like}, ascending, got {text!r}")
        while number < last:
            found.add(number)
            number *= factor
        found.add(last)
    return sorted(found)


def _reader(annotation: Any) -> Reader:
    """What reads a value as Hydra's grammar has it, and checks it by an annotation (checked.py)."""
    kind = kind_of(annotation)

    def read_value(key: str, text: str) -> Any:
        try:
            value = OverridesParser.create().parse_override(f"{key}={text}").value()
        except HydraException:
            value = text
        if not kind.fits(value):
            raise UserError(f"{key}: {kind.words}, got {text!r}")
        return value

    read_value.__doc__ = f"{kind.words.capitalize()}."
    return read_value


positive = _reader(Positive)
from_zero = _reader(Annotated[float, within(0)])
count = _reader(Count)


def yes_no(key: str, text: str) -> bool:
    """true or false."""
    value: bool = _reader(bool)(key, text)
    return value


def share_of(key: str, text: str) -> tuple[int, int]:
    """``2/3``: the second of three shares."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"{key}: a share such as 2/3, the second of three, got {text!r}")
    return int(found[1]), int(found[2])


def some_text(key: str, text: str) -> str:
    """A name or a path."""
    if not text:
        raise UserError(f"{key}: has no value; give one")
    return text
