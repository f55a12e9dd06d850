"""The count of calls in docs/architecture.md is not exceeded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hops import calls_of_a_step, counted

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
COUNT = re.compile(r"this is (\d+) calls of (\d+) functions in (\d+) files")


@pytest.mark.timeout(120)
def test_a_gradients_path_is_no_longer_than_the_page_says() -> None:
    written = COUNT.search(PAGE.read_text(encoding="utf-8"))
    assert written is not None
    found = counted(calls_of_a_step())
    most = map(int, written.groups())
    assert all(a <= b for a, b in zip(found, most, strict=True)), (
        "run python tests/exchange/hops.py"
    )
