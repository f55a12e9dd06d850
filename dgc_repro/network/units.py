"""Rates and durations as they are written: "100mbit", "50us". Decimal, as tc and vendors count."""

from __future__ import annotations

import re

RATE_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def bits_per_second(field: str, text: object) -> float:
    """A rate such as ``100mbit``, above 0. Raises ValueError that begins with ``field``."""
    return _number(field, text, RATE_UNITS, "a rate with its unit, such as 100mbit or 2.5gbit")


def seconds(field: str, text: object) -> float:
    """A duration such as ``50us``, above 0, or 0. Raises ValueError that begins with ``field``."""
    if isinstance(text, int | float) and not isinstance(text, bool) and text == 0:
        return 0.0
    return _number(field, text, TIME_UNITS, "a duration with its unit, such as 50us or 1ms", 0.0)


def _number(
    field: str, text: object, units: dict[str, float], like: str, least: float | None = None
) -> float:
    found = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([a-z]+)", str(text).strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(f"{field}: {like}, got {text!r} (units: {', '.join(units)})")
    value = float(found[1]) * units[found[2]]
    if value < 0 or (least is None and value == 0):
        raise ValueError(f"{field}: {like}, above 0, got {text!r}")
    return value
