"""Checks of settings that many components share; each raises ValueError, beginning with the bare field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def check_whole(field: str, value: object, least: int = 1, *, of: str = "") -> None:
    """A whole number from ``least``; ``of``: of what, such as " of epochs"."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{field}: a whole number{of} from {least}, got {value!r}")


def check_number(
    field: str,
    value: object,
    like: str = "a number",
    fits: Callable[[float], bool] = lambda value: True,
) -> None:
    """A finite number that ``fits``, in words ``like``. (YAML reads 1e-3 as a word, 1.0e-3 as a number.)"""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not fits(value):  # type: ignore[arg-type]
        raise ValueError(f"{field}: {like}, got {value!r}")


def check_share(field: str, value: object, like: str = "above 0 and at most 1") -> None:
    """A number above 0 and at most 1."""
    check_number(field, value, like, lambda share: 0 < share <= 1)


def check_one_of(field: str, value: object, known: Sequence[Any]) -> None:
    """One of a few words."""
    if value not in known:
        raise ValueError(f"{field}: one of {', '.join(known)}, got {value!r}")


def check_flag(field: str, value: object) -> None:
    """true or false. (Hydra reads `no` as a word, hence true.)"""
    if not isinstance(value, bool):
        raise ValueError(f"{field}: true or false, got {value!r}")


def check_ladder(field: str | None, values: Sequence[Any], least: int = 0) -> None:
    """Field and values go together, each value once, ``least`` of them at least."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"values: a list of settings, weakest first, got {values!r}")
    for value in values:
        if value is None or isinstance(value, Mapping | list):
            raise ValueError(f"values: each a setting, a number or a word, got {list(values)!r}")
    if (field is None) != (len(values) == 0):
        raise ValueError(
            f"field: names the compressor's setting that values are for, got {field!r} with "
            f"values {list(values)!r}; give both or neither"
        )
    if len(set(values)) != len(values):
        raise ValueError(f"values: each setting once, weakest first, got {list(values)!r}")
    if len(values) < least:
        raise ValueError(
            f"values: at least {'one setting' if least == 1 else f'{least} settings'}, weakest first, got "
            f"{list(values) or 'none'}"
        )
