"""E[C(x)] = x, for every method that claims it; and the errors of quantizers that docs/methods.md states."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numeric import Array, context, dense, encoded, heavy_tailed
from torch import Tensor

from dgc_repro import EDEN, QSGD, BlockFloat, Natural, RandomK, TernGrad, Uniform
from dgc_repro.kernel.batch import Batch

SIZE, DRAWS = 203, 300
CLAIMS = [
    *(QSGD(1, 64), QSGD(7, None), QSGD(3, 64, "max")),
    *(Uniform(2, "stochastic"), Uniform(4, "stochastic", 50), Uniform(8, "stochastic")),
    *(TernGrad(None), Natural()),
    *(RandomK(factor=4, unbiased=True, shared=shared) for shared in (True, False)),
]


def extremes() -> dict[str, Tensor]:
    x = heavy_tailed(SIZE, 3)
    unit = x / x.abs().max()
    dominated = 1e-3 * unit
    dominated[7] = 1.0
    return {
        "ordinary": x,
        "tiny": 1e-30 * unit,
        "huge": 5e37 * unit,
        "one dominates": dominated,
        "one element": torch.tensor([-0.3]),
        "equal": torch.full((SIZE,), 0.1),
        "zeros": torch.zeros(SIZE),
    }


def sent(method: Any, x: Tensor, step: int) -> Any:
    """The payload of one step."""
    if not isinstance(method, RandomK):
        return encoded(method, x, context(step))
    return method.encode(Batch(("w",), [x]), context(step))


def spread(method: Any, x: Tensor) -> tuple[Array, Array]:
    """By the method's definition, how far the two outcomes of each value lie apart, and with which
    probability it is the farther one."""
    size, n = x.double().abs().numpy(), x.numel()
    if isinstance(method, RandomK):
        k = method._kept(n)
        return size * (n / k), np.where(size > 0, k / n, 0)
    if isinstance(method, Natural):
        low = np.where(size > 0, 2.0 ** np.floor(np.log2(np.where(size > 0, size, 1))), 1.0)
        return low, np.where(size > 0, size / low - 1, 0)
    payload = sent(method, x, 0)
    (layout,) = payload.layout.tensors
    step = payload.layout.view(payload.buffer, 0, 0).double()
    if layout.per_row:
        step = step.repeat_interleave(layout.width)[:n]
    gap = step.expand(n).numpy()
    part = np.where(gap > 0, size / np.where(gap > 0, gap, 1), 0) % 1
    return gap, np.where(
        np.minimum(part, 1 - part) < 1e-6, 0, part
    )  # on the grid, but for rounding


@pytest.mark.parametrize("kind", extremes())
@pytest.mark.parametrize("method", CLAIMS, ids=str)
def test_the_mean_of_many_draws_is_what_was_given(method: Any, kind: str) -> None:
    """z-tests of DRAWS draws: each value that is drawn often enough for a normal mean, and all of them
    together (a dither that is off by 2 % of a step would give a z of 10)."""
    x = extremes()[kind]
    total = np.zeros(x.numel())
    for step in range(DRAWS):
        total += dense(sent(method, x, step)).double().numpy()
    given, (gap, share) = x.double().numpy(), spread(method, x)
    off, expected = total / DRAWS - given, DRAWS * share * (1 - share)
    error = gap * np.sqrt(expected) / DRAWS
    certain, often = expected == 0, expected > 10
    assert np.abs(off[certain]).max(initial=0.0) <= 2e-6 * np.abs(given).max()
    assert np.abs(off[often] / error[often]).max(initial=0.0) < 6
    if not certain.all():
        toward = (off * np.sign(given))[~certain].sum()
        z = toward / math.sqrt(np.square(error[~certain]).sum())
        assert abs(z) < 5


# The table of docs/methods.md that compares quantizers at equal bytes.

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"drive": EDEN, "eden": EDEN, "qsgd": QSGD, "terngrad": TernGrad, "blockfloat": BlockFloat}


def rows() -> list[list[str]]:
    """The cells of each row."""
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    section = text.partition("## Errors of quantizers")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def made(setting: str) -> Any:
    """The method of a row: that of its YAML, with the settings that the row names."""
    name, *given = setting.replace("`", "").split(", ")
    config = yaml.safe_load((ROOT / f"conf/compressor/{name}.yaml").read_text(encoding="utf-8"))
    del config["_target_"]
    changes = {key: yaml.safe_load(value) for key, value in (one.split("=") for one in given)}
    return KINDS[name](**{**config, **changes})


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_table_is_what_is_measured(row: list[str]) -> None:
    """A last digit may be off by one: by the scatter of draws, and of blocks."""
    setting, bits, *errors, _ = row
    method = made(setting)
    for spread, stated in zip((0.0, 1.0), errors, strict=True):
        x = heavy_tailed(2**20, 9, spread)
        own = encoded(method, x)
        assert own.num_bytes * 8 / len(x) == pytest.approx(float(bits), abs=0.006)
        exact = x.double()
        error = float((dense(own).double() - exact).square().sum() / exact.square().sum())
        last = 10.0 ** -len(stated.partition(".")[2])
        assert error == pytest.approx(float(stated), abs=1.5 * last)
