"""Settings against the annotations of the dataclass that they are for.

`made` builds the dataclass. What its own checks say comes first, because it is more exact; the types say the
rest: a word for a number, ``true`` for a count, NaN, a number that no 64-bit float holds exactly.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from dgc_repro.errors import UserError

MOST = 10**15
"""Of a whole number: no count here comes near it, and a float64 still holds it exactly."""
MOST_SHOWN = 20  # names in an error line; of more, only the groups are shown


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the likeliest intended name, or all there are."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    shown = (
        choices if len(choices) <= MOST_SHOWN else sorted({name.split(".")[0] for name in choices})
    )
    return f"there are: {', '.join(shown) or 'none'}"


def made(factory: type[Any], settings: Mapping[str, Any], place: str) -> Any:
    """The dataclass with these settings. Raises UserError naming the key that is wrong."""
    fields = {field.name: field for field in dataclasses.fields(factory) if field.init}
    for name in settings:
        if name not in fields:
            raise UserError(f"{place}.{name}: no such key; {nearest(str(name), fields)}")
    for name, field in fields.items():
        has_default = not field.default is field.default_factory is dataclasses.MISSING
        if name not in settings and not has_default:
            raise UserError(f"{place}.{name}: has no value; give one")
    try:
        found = factory(**settings)
    except UserError:
        raise
    except Exception as error:  # also what a value of a wrong type leads to, before it was checked
        key = str(error).partition(":")[0].partition(".")[0]
        if not (isinstance(error, ValueError) and key in fields):
            refuse_types(factory, settings, place)
        if not isinstance(error, ValueError):
            text = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"{place}: these settings do not work together ({text})") from error
        raise UserError(f"{place}.{error}") from error
    refuse_types(factory, settings, place)
    return found


def refuse_types(factory: type[Any], settings: Mapping[str, Any], place: str) -> None:
    """Raise UserError for the first setting that is not of its field's type."""
    try:
        hints = get_type_hints(factory)
    except NameError:  # a user's component may import the names of its types for type checkers only
        return
    for name, value in settings.items():
        if wanted := _misfit(value, hints[name]):
            raise UserError(f"{place}.{name}: {wanted}, got {value!r}")


def _misfit(value: Any, hint: Any) -> str | None:
    """What is wanted in the place of a value, in words; None where it fits, or where nothing is known."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, types.UnionType):
        wanted = [_misfit(value, one) for one in inner]
        return None if None in wanted else ", or ".join(str(word) for word in wanted)
    if hint is type(None):
        return None if value is None else "null"
    if hint is bool:
        return None if isinstance(value, bool) else "true or false"
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST
        return None if fits else f"a whole number, at most {MOST:.0e}"
    if hint is float:
        return None if _is_finite(value) else "a number"
    if hint is str:
        return (
            None if isinstance(value, str) else "a word (in quotes where it is a number: \"'3'\")"
        )
    if kind is Sequence:
        if not isinstance(value, Sequence) or isinstance(value, str):
            return "a list"
        return next((f"a list, each {w}" for v in value if (w := _misfit(v, inner[0]))), None)
    if kind is Mapping:
        if not isinstance(value, Mapping):
            return "settings by name, as {name: value}"
        pairs = [
            (part, want) for pair in value.items() for part, want in zip(pair, inner, strict=True)
        ]
        return next((f"by name, each {w}" for v, hint in pairs if (w := _misfit(v, hint))), None)
    return None


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
