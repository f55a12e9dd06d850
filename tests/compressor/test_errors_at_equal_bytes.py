"""The table of docs/methods.md that compares quantizers at equal bytes, measured anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from numeric import dense, encoded, heavy_tailed

from dgc_repro import EDEN, QSGD, BlockFloat, TernGrad

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"drive": EDEN, "eden": EDEN, "qsgd": QSGD, "terngrad": TernGrad, "blockfloat": BlockFloat}
SIZE = 2**20


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
        x = heavy_tailed(SIZE, 9, spread)
        own = encoded(method, x)
        assert own.num_bytes * 8 / SIZE == pytest.approx(float(bits), abs=0.006)
        exact = x.double()
        error = float((dense(own).double() - exact).square().sum() / exact.square().sum())
        last = 10.0 ** -len(stated.partition(".")[2])
        assert error == pytest.approx(float(stated), abs=1.5 * last)
