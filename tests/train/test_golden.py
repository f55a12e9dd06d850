"""Six steps of three methods, beside the losses that were written down (tests/golden/make.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))

from make import NUM_STEPS, RUNS, curve  # noqa: E402

RELATIVE_TOLERANCE = 1e-3
"""The same machine gives the same bits. Another one may sum convolutions in another order (288 products
a layer, 18 layers: 3e-4 at most of one step), and training makes differences grow: 6e-4 in 6 steps
between oneDNN's kernels and torch's own. A wrong sign, scale or rung shows in the first digits."""


@pytest.mark.parametrize("name", RUNS)
def test_the_losses_are_those_written_down(name: str) -> None:
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    golden = [(int(rung), float(loss)) for rung, loss in map(str.split, text.splitlines())]
    assert len(golden) == NUM_STEPS
    now = curve(RUNS[name])
    assert [rung for rung, _ in now] == [rung for rung, _ in golden]
    losses = [loss for _, loss in golden]
    assert [loss for _, loss in now] == pytest.approx(losses, rel=RELATIVE_TOLERANCE)


def test_the_curves_tell_the_methods_apart() -> None:
    texts = {(GOLDEN / f"{name}.txt").read_text(encoding="utf-8") for name in RUNS}
    assert len(texts) == len(RUNS)
    rungs = [line.split()[0] for line in (GOLDEN / "dynamic.txt").read_text().splitlines()]
    assert len(set(rungs)) > 1
