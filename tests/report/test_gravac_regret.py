"""GraVAC against the oracle: modelled time to the target over that of the best static row."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_decisions import EPOCHS, read, write_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.report.figures import Look
from dgc_repro.report.gravac_course import course
from dgc_repro.report.gravac_regret import REGRET, oracle, regret_block
from dgc_repro.report.gravac_regret_figure import figure

ROWS = {"vgg16.gravac07": "loose", "vgg16.gravac09": "tight"}


def climb(epoch_at_80: int) -> list[float]:
    """80 % is met at this epoch, and nothing more comes."""
    return [80.0 if epoch >= epoch_at_80 else 50.0 for epoch in range(1, EPOCHS + 1)]


def write(runs: Path, method: str, met: int, step_seconds: float | None, seed: int = 0) -> None:
    write_run(
        runs, f"vgg16.{method}", seed=seed, curve=climb(met), step_seconds=step_seconds,
        floats=1.0 if method == "dense" else 0.1,
    )  # fmt: skip


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
    assert "(dense; Top-k, Random-k at 1000x; DGC at 10x)" in block.text


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


def test_dense_runs_of_other_seeds_set_the_target_and_are_no_oracle(tmp_path: Path) -> None:
    for seed, met in enumerate((10, 1, EPOCHS + 1)):  # final: 80, 80, 50 %
        write(tmp_path, "dense", met, 1.0, seed)
    write(tmp_path, "gravac07", 20, 1.0)
    block, found = regret_block(course(read(tmp_path), "vgg16", "small"), ROWS)
    assert "52.68 % (dense n = 3)" in block.text, "70 - 17.32"
    assert block.rows[-1] == ("oracle: dense", "1", "500", "1x")
    assert found[REGRET] == {"vgg16.gravac07": {0: pytest.approx(2.0)}}
    axes = drawn(tmp_path)
    assert "52.68 % (dense n = 3)" in axes.get_title(loc="left")
    assert "n = 1" in heading_of(axes)


def test_a_row_that_sends_nearly_what_dense_sends_is_marked(tmp_path: Path) -> None:
    write(tmp_path, "dense", 10, 1.0)
    write(tmp_path, "dgc10", 12, 1.0)
    for method, fewer in (("gravac07", 1.02), ("gravac09", 1.2)):
        write_run(tmp_path, f"vgg16.{method}", curve=climb(5), step_seconds=1.0, floats=1 / fewer)
    block, _ = regret_block(course(read(tmp_path), "vgg16", "small"), ROWS)
    assert [row[-1] for row in block.rows[:2]] == [
        "0.50x, nearly dense (1.02x fewer floats)",
        "0.50x",
    ]
    axes = drawn(tmp_path)
    assert said(axes)["loose"] == "0.50x,\nnearly dense (1.02x fewer floats)"
    assert "Oracle of: dense; DGC at 10x" in heading_of(axes)


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


def drawn(runs: Path, rows: dict[str, str] = ROWS) -> Axes:
    looks = {name: Look("#0072B2", "^") for name in rows}
    one = course(read(runs), "vgg16", "small")
    (axes,) = figure(one, rows, looks, "Regret", "small").axes
    return axes


def heading_of(axes: Axes) -> str:
    drawing = axes.get_figure()
    assert isinstance(drawing, Figure)
    return drawing.get_suptitle()


def said(axes: Axes) -> dict[str, str]:
    """What is written beside each row."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return {labels[round(text.xy[1])]: text.get_text() for text in axes.texts}


def points(axes: Axes, marker: str) -> dict[str, float]:
    """Where a row's marker is."""
    labels = [label.get_text() for label in axes.get_yticklabels()]
    return {
        labels[round(line.get_ydata()[0])]: float(line.get_xdata()[0])
        for line in axes.lines
        if line.get_marker() == marker
    }


def test_the_figure_has_every_row_of_the_table_and_says_which_did_not_meet_the_target(
    tmp_path: Path,
) -> None:
    rows = {**ROWS, "vgg16.gravac09_norm": "other"}
    write(tmp_path, "dense", 10, 1.0)  # 500 s
    write(tmp_path, "gravac07", 12, 2.0)  # 1200 s
    write(tmp_path, "gravac09", EPOCHS + 1, 1.0)
    block, _ = regret_block(course(read(tmp_path), "vgg16", "small"), rows)
    axes = drawn(tmp_path, rows)
    assert [label.get_text() for label in axes.get_yticklabels()] == [row[0] for row in block.rows]
    assert said(axes) == {
        "loose": "2.40x",
        "tight": "target not met",
        "other": "not run",
        "oracle: dense": "1x = 500 s",
    }
    assert points(axes, "^") == {"loose": pytest.approx(2.4)}
    assert points(axes, "o") == {"oracle: dense": 1.0}
    edge = [line for line in axes.lines if line.get_marker() == "x"]
    assert points(axes, "x") == {"tight": 1.0, "other": 1.0}
    assert all(line.get_transform() == axes.get_yaxis_transform() for line in edge), "at its end"
    assert axes.get_xlim()[1] > 2.4


def test_the_figure_has_the_spread_over_seeds_and_how_many_met_the_target(tmp_path: Path) -> None:
    for seed, met in enumerate((10, 20, EPOCHS + 1)):
        write(tmp_path, "dense", 10, 1.0, seed)
        write(tmp_path, "gravac07", met, 1.0, seed)
    axes = drawn(tmp_path)
    assert said(axes)["loose"] == "1.50x +- 0.71, met by 2 of 3"
    (whisker,) = axes.containers
    (ends,) = whisker.lines[2][0].get_segments()
    assert ends[:, 0] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(
    ("dense", "seconds", "reason"),
    [
        (None, 1.0, "no target: no dense run"),
        (10, None, "no network named"),
        (10, 1.0, "met, by no static row"),
    ],
)
def test_the_figure_says_why_a_row_has_no_regret(
    tmp_path: Path, dense: int | None, seconds: float | None, reason: str
) -> None:
    if dense is not None:
        write(tmp_path, "dense", dense, seconds, seed=1)
    write(tmp_path, "gravac07", 10, seconds, seed=0)
    assert said(drawn(tmp_path))["loose"] == reason
