"""Checks that settings share: what they let through, and their words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from dgc_repro.policy.checks import (
    check_flag,
    check_ladder,
    check_number,
    check_one_of,
    check_share,
    check_whole,
)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_whole("window", 0), "window: a whole number from 1, got 0"),
        (lambda: check_whole("window", True), "window: a whole number from 1, got True"),
        (lambda: check_whole("window", 2.0), "window: a whole number from 1, got 2.0"),
        (
            lambda: check_whole("interval", "3", of=" of epochs"),
            "interval: a whole number of epochs from 1, got '3'",
        ),
        (lambda: check_number("lr", "1e-3"), "lr: a number, got '1e-3'"),
        (lambda: check_number("lr", math.nan), "lr: a number, got nan"),
        (lambda: check_number("lr", True), "lr: a number, got True"),
        (lambda: check_number("ratio", 1, "above 1", lambda x: x > 1), "ratio: above 1, got 1"),
        (lambda: check_share("eps", 0), "eps: above 0 and at most 1, got 0"),
        (lambda: check_share("eps", 1.01), "eps: above 0 and at most 1, got 1.01"),
        (lambda: check_one_of("gain", "all", ("fed", "raw")), "gain: one of fed, raw, got 'all'"),
        (lambda: check_flag("freeze", "no"), "freeze: true or false, got 'no'"),
        (lambda: check_ladder(None, (8,)), "field: names the compressor's setting"),
        (lambda: check_ladder("bits", ()), "field: names the compressor's setting"),
        (lambda: check_ladder("bits", (8, 8)), "values: each setting once, weakest first"),
        (
            lambda: check_ladder(None, (), least=1),
            "values: at least one setting, weakest first, got none",
        ),
        (
            lambda: check_ladder("bits", (8,), least=2),
            "values: at least 2 settings, weakest first, got [8]",
        ),
    ],
)
def test_what_does_not_fit_is_named(check: Callable[[], None], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check()


def test_what_fits_passes() -> None:
    check_whole("epochs", 1)
    check_whole("steps", 0, 0)
    check_number("momentum", 0)
    check_share("eps", 1)
    check_one_of("gain", "raw", ("fed", "raw"))
    check_flag("freeze", False)
    check_ladder(None, ())
    check_ladder("bits", (8, 4), least=2)
