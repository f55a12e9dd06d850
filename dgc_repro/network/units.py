"""Rates and durations as they are written: "100mbit", "50us". Decimal, as tc and vendors count."""

from __future__ import annotations

import re
from typing import Annotated

from dgc_repro.checked import Rule

RATE_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
RATE_LIKE = (
    f"a rate with its unit, above 0, such as 100mbit or 2.5gbit (units: {', '.join(RATE_UNITS)})"
)
TIME_LIKE = (
    f"a duration with its unit, such as 50us or 1ms, 0us for none (units: {', '.join(TIME_UNITS)})"
)


def bits_per_second(field: str, text: object) -> float:
    """A rate such as ``100mbit``, above 0. Raises ValueError that begins with ``field``."""
    value = _number(text, RATE_UNITS)
    if not value:
        raise ValueError(f"{field}: {RATE_LIKE}, got {text!r}")
    return value


def seconds(field: str, text: object) -> float:
    """A duration such as ``50us``, or 0. Raises ValueError that begins with ``field``."""
    value = 0.0 if text == 0 and text is not False else _number(text, TIME_UNITS)
    if value is None:
        raise ValueError(f"{field}: {TIME_LIKE}, got {text!r}")
    return value


def _number(text: object, units: dict[str, float]) -> float | None:
    """None for a text that is no number with one of these units."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]+)", str(text).strip().lower())
    return float(found[1]) * units[found[2]] if found is not None and found[2] in units else None


Rate = Annotated[str, Rule(RATE_LIKE, lambda text: bool(_number(text, RATE_UNITS)))]
Duration = Annotated[str, Rule(TIME_LIKE, lambda text: _number(text, TIME_UNITS) is not None)]
