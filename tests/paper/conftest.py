"""What holds for every page that the tests make."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dgc_repro.paper import frame

INVERSE = re.compile("less|fewer|speedup|saving")
"""In the name of what is larger where a row's own value is smaller."""


@pytest.fixture(autouse=True)
def _what_is_saved_divides_the_baselines_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that shows 0.25 times less in the place of 4 fails the test that makes it."""
    relative = frame.relative

    def checked(*given: Any, name: str, inverse: bool = False, **named: Any) -> Any:
        assert inverse == bool(INVERSE.search(name)), name
        return relative(*given, name=name, inverse=inverse, **named)

    monkeypatch.setattr(frame, "relative", checked)
