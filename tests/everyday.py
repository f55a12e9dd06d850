"""Which parameters of a test are tried every day, and which by `make test-slow` alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases as parameters; those that are not ``chosen`` run in the slow suite."""
    cases = list(cases)
    assert all(case in cases for case in chosen), "chosen, and no case"
    return [
        case
        if case in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
