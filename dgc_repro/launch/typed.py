"""Settings of the config to the dataclass that they are for; messages name the config's key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dgc_repro.checked import refuse
from dgc_repro.errors import UserError
from dgc_repro.names import renamed

T = TypeVar("T")


def nearest(name: str, known: Iterable[str], shown: Sequence[str] | None = None) -> str:
    """A clause that names the likeliest intended name; without one, all of them or those that are
    ``shown``."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(choices if shown is None else shown) or 'none'}"


def nearest_key(key: str, known: Iterable[str]) -> str:
    """A clause that names the likeliest intended one of many keys, or the three that are most like it."""
    choices = sorted(known)
    alike = difflib.get_close_matches(key, choices, n=3, cutoff=0) or choices[:3]
    if difflib.get_close_matches(key, alike, cutoff=0.6):
        return f"did you mean {alike[0]}?"
    return f"the nearest keys are {', '.join(alike)}; --help lists all"


def mapping(node: Any, place: str) -> Mapping[str, Any]:
    """The node, if it has settings by name. Raises UserError otherwise."""
    if not isinstance(node, Mapping):
        raise UserError(
            f"{place}: has settings by name ({place}.<key>=<value>), got {node!r} in their place"
        )
    return node


def made(factory: type[T], node: Any, place: str) -> T:
    """The dataclass with the settings of a node. Raises UserError naming the key that is wrong."""
    settings = mapping(node, place)
    fields = {field.name: field for field in dataclasses.fields(factory) if field.init}  # type: ignore[arg-type]
    for name in settings:
        if name not in fields:
            likely = renamed(f"{place}.{name}") or nearest(str(name), fields)
            raise UserError(f"{place}.{name}: no such key; {likely}")
    for name, field in fields.items():
        has_default = not field.default is field.default_factory is dataclasses.MISSING
        if name not in settings and not has_default:
            raise UserError(f"{place}.{name}: has no value; give one")
    try:
        refuse(factory, settings)  # a user's own dataclass may not check itself (checked.py)
        return factory(**settings)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{place}.{error}") from error
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{place}: these settings do not work together ({text})") from error
