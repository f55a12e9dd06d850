"""The figure of `compare`: what its x axis shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from dgc_repro import compare
from dgc_repro.paper import plot


@pytest.mark.parametrize(
    ("payloads", "scale", "least_span"),
    [((1.0e6, 1.006e6), "linear", 1.99), ((1e6, 1e8), "log", 100)],
)
def test_nearly_equal_bytes_are_drawn_side_by_side_in_mb(
    payloads: tuple[float, float],
    scale: str,
    least_span: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save", lambda figure, *_: figures.append(figure))
    numbers = {"quality": (90.0, 91.0), "payload_bytes": payloads}
    table = pd.DataFrame(
        {"settings": ("topk", "blocks"), "metric": "test/accuracy_percent", **numbers}
    )
    compare.draw(table, "payload_bytes", tmp_path)
    (axes,) = figures[0].axes
    low, high = axes.get_xlim()
    assert low < 1 < payloads[1] / 1e6 < high  # MB
    assert high / low > least_span
    assert (axes.get_xscale(), axes.get_xlabel()) == (scale, "payload of one worker (MB)")
