"""Settings of the config to the dataclass that they are for; messages name the config's key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from dgc_repro.checked import refuse
from dgc_repro.errors import UserError
from dgc_repro.names import renamed

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
            likely = renamed(f"{place}.{name}") or nearest(str(name), fields)
            raise UserError(f"{place}.{name}: no such key; {likely}")
    for name, field in fields.items():
        has_default = not field.default is field.default_factory is dataclasses.MISSING
        if name not in settings and not has_default:
            raise UserError(f"{place}.{name}: has no value; give one")
    try:
        refuse(
            factory, settings
        )  # a user's own dataclass may not check itself (dgc_repro/checked.py)
        return factory(**settings)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{place}.{error}") from error
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{place}: these settings do not work together ({text})") from error
