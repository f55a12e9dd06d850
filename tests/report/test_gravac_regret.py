"""GraVAC against the oracle: modelled time to the target over that of the best static row."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_decisions import EPOCHS, read, write_run

from dgc_repro.report.gravac_course import course
from dgc_repro.report.gravac_regret import REGRET, oracle, regret_block

ROWS = {"vgg16.gravac07": "loose", "vgg16.gravac09": "tight"}


def climb(epoch_at_80: int) -> list[float]:
    """80 % is met at this epoch, and nothing more comes."""
    return [80.0 if epoch >= epoch_at_80 else 50.0 for epoch in range(1, EPOCHS + 1)]


def write(runs: Path, method: str, met: int, step_seconds: float | None, seed: int = 0) -> None:
    write_run(runs, f"vgg16.{method}", seed=seed, curve=climb(met), step_seconds=step_seconds)


def test_regret_is_the_time_over_that_of_the_quickest_static_row(tmp_path: Path) -> None:
    write(tmp_path, "dense", 10, 1.0)  # 500 s
    write(tmp_path, "dgc10", 10, 0.4)  # 200 s
    write(tmp_path, "topk1000", 16, 0.2)  # 160 s: the quickest
    write(tmp_path, "randomk1000", EPOCHS + 1, 0.1)  # never
    write(tmp_path, "gravac07", 12, 0.4)  # 240 s
    block, found = regret_block(course(read(tmp_path), "vgg16", "small"), ROWS)
    assert found[REGRET] == {"vgg16.gravac07": {0: pytest.approx(1.5)}}
    assert block.rows == (
        ("loose", "1", "240", "1.50x"),
        ("tight", "0", "-", "-"),
        ("oracle: Top-k 1000x", "1", "160", "1x"),
    )
    assert "80 %" in block.text
    assert "Random-k 1000x" in block.text


def test_the_oracle_is_of_static_rows_only_and_by_seed(tmp_path: Path) -> None:
    for seed, (weak, strong) in enumerate(((10, 5), (5, 10))):
        write(tmp_path, "dense", 10, 1.0, seed)
        write(tmp_path, "dgc10", weak, 0.4, seed)
        write(tmp_path, "dgc1000", strong, 0.4, seed)
        write(tmp_path, "gravac07", 1, 0.01, seed)
        write(tmp_path, "dgc10_gains", 1, 0.01, seed)
    own = course(read(tmp_path), "vgg16", "small")
    _, found = regret_block(own, ROWS)
    assert oracle(own, found) == {
        0: (pytest.approx(100), "vgg16.dgc1000"),
        1: (pytest.approx(100), "vgg16.dgc10"),
    }
    assert found[REGRET]["vgg16.gravac07"][0] < 0.01


@pytest.mark.parametrize("step_seconds", [1.0, None])
def test_without_a_dense_run_or_a_network_there_is_no_regret(
    tmp_path: Path, step_seconds: float | None
) -> None:
    if step_seconds is None:
        write(tmp_path, "dense", 10, None)
    write(tmp_path, "gravac07", 10, step_seconds)
    block, found = regret_block(course(read(tmp_path), "vgg16", "small"), ROWS)
    assert not found.get(REGRET)
    assert {row[2:] for row in block.rows} == {("-", "-")}
