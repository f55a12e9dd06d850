"""The path of a gradient does not grow longer (docs/architecture.md)."""

from __future__ import annotations

import pytest
from hops import calls_of_a_step, counted

MOST = 189, 119, 29  # calls, functions, files


@pytest.mark.timeout(120)
def test_a_gradients_path_is_no_longer_than_it_was() -> None:
    found = counted(calls_of_a_step())
    assert all(a <= b for a, b in zip(found, MOST, strict=True)), (
        "run python tests/exchange/hops.py"
    )
