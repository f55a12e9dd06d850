"""GraVAC's figures 7 to 10: factors by step, densities, dips, reductions, and verdicts that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_decisions import EPOCHS, decisions, read, stretches, write_run

from dgc_repro.paper.gravac_training import REDUCTIONS
from dgc_repro.report.gravac_factor_numbers import around_decay, decay_step, density, throughput
from dgc_repro.report.gravac_factors import FIGURES
from dgc_repro.report.gravac_pool import METRICS
from dgc_repro.report.study import Page, markdown

FALLS = [0.1] * 10 + [0.01] * 10
"""The learning rate by epoch: it falls after epoch 10 of 20, step 500 of 1,000."""


def words(page: Page, norm: bool = False) -> dict[str, str]:
    """Verdicts on the rows with the energy gain, or with the norm gain."""
    found = {claim.id: verdict.word for claim, verdict in page.verdicts}
    return {name: word for name, word in found.items() if name.endswith(".norm") == norm}


def dipping(depth: float, final: float = 80.0) -> list[float]:
    """A curve that loses ``depth`` points in the epoch after the learning rate falls."""
    rising = list(np.linspace(20, 70, 10))
    return [*rising, 70 - depth, *np.linspace(71, final, EPOCHS - 11)]


def write_model(
    runs: Path,
    model: str,
    loose: Sequence[float],
    tight: Sequence[float],
    *,
    reductions: tuple[float, float] | None = None,
    dips: tuple[float, float] = (6.0, 2.0),
    theta_min: float = 10.0,
    seeds: int = 3,
    ending: str = "",
) -> None:
    """Dense and GraVAC at both eps. ``loose``, ``tight``: the factor by step; ``ending``: of each row."""
    first, second = reductions or tuple(REDUCTIONS[model][m] for m in ("gravac07", "gravac09"))
    for seed in range(seeds):
        write_run(runs, f"{model}.dense", seed=seed, lr=FALLS)
        for method, factors, less, dip in (
            ("gravac07", loose, first, dips[0]),
            ("gravac09", tight, second, dips[1]),
        ):
            write_run(
                runs, f"{model}.{method}{ending}", seed=seed, lr=FALLS, floats=1 / less,
                curve=dipping(dip), decided=decisions(factors, theta_min=theta_min),
            )  # fmt: skip


MOSTLY_1000 = stretches((200, 10), (100, 40), (700, 1000))
EVENLY = stretches((500, 10), (500, 1000))


def test_resnet101_as_the_paper_says_agrees_but_for_the_window_that_nobody_ran(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "resnet101", MOSTLY_1000, EVENLY)
    found = words(FIGURES["fig7"].page(read(tmp_path), "small"))
    assert found.pop("resnet101.window") == "not run"
    assert set(found.values()) == {"agrees"}


def test_rows_with_the_norm_gain_are_judged_beside_the_others(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "resnet101", MOSTLY_1000, EVENLY, ending="_norm")
    for seed in range(3):
        for method in ("gravac07", "gravac09"):
            dense = decisions([1.0] * 1000)
            write_run(tmp_path, f"resnet101.{method}", seed=seed, lr=FALLS, decided=dense)
    page = FIGURES["fig7"].page(read(tmp_path), "small")
    assert set(words(page, norm=True).values()) == {"agrees"}
    assert words(page)["resnet101.mostly"] == words(page)["resnet101.gravac07.less"] == "differs"
    shown = page.blocks[0]
    assert "shows 0 of 10 findings" in shown.text
    ways = {row[0]: row[1:] for row in shown.rows}
    untested = next(claim for claim in ways if "theta_min is left at 10" in claim)
    assert ways[untested] == ("-", "yes"), "where nothing was compressed nothing was tried"
    assert "the norm gain (as in the authors' code) 10 of 10" in shown.text


@pytest.mark.parametrize(
    ("changed", "claims"),
    [
        ({"tight": MOSTLY_1000}, {"resnet101.even"}),
        ({"loose": EVENLY}, {"resnet101.mostly"}),
        ({"theta_min": 40.0}, {"resnet101.theta_min"}),
        ({"dips": (2.0, 6.0)}, {"resnet101.deeper"}),
        ({"dips": (6.0, -1.0)}, {"resnet101.dip"}),
        ({"reductions": (400.0, 19.0)}, {"resnet101.gravac07.volume"}),
        (
            {"reductions": (19.0, 163.0)},
            {"resnet101.gravac07.volume", "resnet101.gravac09.volume", "resnet101.eps"},
        ),
        (
            {"reductions": (0.9, 19.0)},
            {"resnet101.gravac07.volume", "resnet101.gravac07.less", "resnet101.eps"},
        ),
    ],
)
def test_each_verdict_turns_with_its_number(
    tmp_path: Path, changed: dict[str, object], claims: set[str]
) -> None:
    given = {"loose": MOSTLY_1000, "tight": EVENLY} | changed
    write_model(tmp_path, "resnet101", **given)  # type: ignore[arg-type]
    found = words(FIGURES["fig7"].page(read(tmp_path), "small"))
    assert {claim for claim, word in found.items() if word == "differs"} == claims


@pytest.mark.parametrize(
    ("loose", "word"),
    [
        (stretches((500, 40), (300, 1000), (200, 10)), "agrees"),
        (stretches((300, 40), (500, 1000), (200, 10)), "differs"),
        (stretches((500, 40), (200, 1000), (300, 10)), "differs"),
    ],
)
def test_vgg16_is_judged_by_the_ranks_of_its_factors(
    tmp_path: Path, loose: list[float], word: str
) -> None:
    write_model(tmp_path, "vgg16", loose, stretches((800, 10), (200, 1000)))
    found = words(FIGURES["fig8"].page(read(tmp_path), "small"))
    assert found["vgg16.loose"] == word
    assert found["vgg16.tight"] == "agrees"


@pytest.mark.parametrize(("tight", "word"), [(MOSTLY_1000, "agrees"), (EVENLY, "differs")])
def test_the_lstm_has_to_be_mostly_at_1000x_for_both(
    tmp_path: Path, tight: list[float], word: str
) -> None:
    write_model(tmp_path, "lstm", MOSTLY_1000, tight)
    assert words(FIGURES["fig9"].page(read(tmp_path), "small"))["lstm.mostly"] == word


def write_geometric(runs: Path, factors: Sequence[float], final: float) -> None:
    for seed in range(3):
        for row, own, reached, less in (
            ("dense", None, 82.0, 1.0),
            ("gravac07", MOSTLY_1000, 80.0, 163.0),
            ("gravac_geometric", factors, final, 76.0),
        ):
            write_run(
                runs, f"resnet101.{row}", seed=seed, final=reached, floats=1 / less,
                decided=None if own is None else decisions(own),
            )  # fmt: skip


SIMILAR = [(50, factor) for factor in (10, 20, 40, 80, 160, 320, 640, 1280)]


def test_the_geometric_policy_as_the_paper_says_agrees(tmp_path: Path) -> None:
    write_geometric(tmp_path, stretches(*SIMILAR, (600, 1280)), final=75.0)
    page = FIGURES["fig10"].page(read(tmp_path), "small")
    assert set(words(page).values()) == {"agrees"}
    assert "0.53 %" in markdown(page)


@pytest.mark.parametrize(
    ("factors", "final", "claim"),
    [
        (stretches((150, 10), *SIMILAR[1:], (500, 1280)), 75.0, "geometric.similar"),
        (stretches(*SIMILAR[1:], (650, 1280)), 75.0, "geometric.similar"),
        (stretches(*SIMILAR, (600, 2000)), 75.0, "geometric.late"),
        (stretches(*SIMILAR, (600, 1280)), 85.0, "geometric.slower"),
    ],
)
def test_each_verdict_of_the_geometric_policy_turns_with_its_number(
    tmp_path: Path, factors: list[float], final: float, claim: str
) -> None:
    write_geometric(tmp_path, factors, final)
    found = words(FIGURES["fig10"].page(read(tmp_path), "small"))
    assert {name for name, word in found.items() if word == "differs"} == {claim}


@pytest.mark.parametrize("bandwidth", [0.1, 0.3])
def test_the_density_integrates_to_one_over_log10_of_the_factor(bandwidth: float) -> None:
    factors = np.array(stretches((30, 1), (500, 10), (200, 40), (270, 1000)))
    grid = np.linspace(-3, 6, 5001)
    found = density(grid, factors, bandwidth)
    assert np.trapezoid(found, grid) == pytest.approx(1.0, abs=1e-6)
    assert 10 ** grid[found.argmax()] == pytest.approx(10, rel=0.2)


def test_a_density_is_the_sum_of_a_bell_for_each_step() -> None:
    grid = np.linspace(0, 3, 7)
    one = np.exp(-0.5 * ((grid - 1) / 0.1) ** 2)
    two = np.exp(-0.5 * ((grid - 2) / 0.1) ** 2)
    expected = (3 * one + two) / (4 * 0.1 * np.sqrt(2 * np.pi))
    assert density(grid, np.array([10.0, 10.0, 10.0, 100.0])) == pytest.approx(expected)


def test_a_dip_is_measured_from_the_last_evaluation_before_the_rate_falls(tmp_path: Path) -> None:
    write_run(tmp_path, "resnet101.gravac07", lr=FALLS, curve=dipping(6.0))
    write_run(tmp_path, "resnet101.dense")
    dense, run = read(tmp_path)
    assert decay_step(run) == 500
    assert around_decay(run, METRICS["accuracy"]) == (70.0, 64.0)
    assert np.isnan(decay_step(dense))
    assert np.isnan(around_decay(dense, METRICS["accuracy"])).all()


def test_steps_throughput_and_branches_are_tables_by_factor_and_row(tmp_path: Path) -> None:
    write_model(tmp_path, "vgg16", stretches((100, 1), (500, 10), (400, 40)), EVENLY, seeds=1)
    page = FIGURES["fig8"].page(read(tmp_path), "small")
    _, factors, throughput, branches, volume, *_ = page.blocks
    assert factors.headings == ("factor", "eps 0.7", "eps 0.9", "eps 0.7 norm", "eps 0.9 norm")
    assert factors.rows == (
        ("1x (dense)", "10.0 %", "0.0 %", "-", "-"),
        ("10x", "50.0 %", "50.0 %", "-", "-"),
        ("40x", "40.0 %", "0.0 %", "-", "-"),
        ("1000x", "0.0 %", "50.0 %", "-", "-"),
    )
    assert [row[1:3] for row in throughput.rows] == [
        *(("10240", "-"), ("9728", "9728"), ("9728", "-"), ("-", "9728")),
    ]  # 8 times the recorded ones: 32 workers are modelled, and 4 have run
    assert branches.rows[0][1:] == ("40.0 %", "50.0 %", "10.0 %", "10", "40")
    # A float of GraVAC's has a place beside it, and is gathered by 4 workers.
    assert volume.rows[1][1:6] == ("80x", "80.0x", "40.0x", "20.0x", "2.50x")
    assert volume.rows[2][1:6] == ("13.5x", "13.5x", "6.75x", "3.38x", "0.42x")


@pytest.mark.parametrize(
    ("settings", "rate", "label"),
    [
        ({}, 10240.0, "samples/s of 32 modelled workers"),
        ({"network": {"as_workers": None}}, 1280.0, "samples/s of 4 workers"),
        ({"train": {"step_time": "measured", "batch_size": 32}}, 1280.0, "samples/s of 4 workers"),
    ],
)
def test_throughput_counts_the_samples_of_the_cluster_whose_step_is_timed(
    tmp_path: Path, settings: dict[str, Any], rate: float, label: str
) -> None:
    write_run(tmp_path, "lstm.gravac07", decided=decisions([1.0] * 50), settings=settings)
    runs = read(tmp_path)
    assert throughput(runs[0], 1.0) == pytest.approx(rate)
    axes = FIGURES["fig9"].figure(runs, "small").axes
    assert axes[2].get_ylabel() == f"{label} times gain"
    assert label.capitalize() in FIGURES["fig9"].page(runs, "small").blocks[2].text


def test_rows_that_were_not_run_are_dashes_and_no_network_has_no_throughput(tmp_path: Path) -> None:
    untimed = decisions(EVENLY).assign(throughput=np.nan)
    write_run(
        tmp_path, "lstm.gravac09", metric="perplexity", final=90, decided=untimed, floats=0.1,
        step_seconds=None,
    )  # fmt: skip
    runs = read(tmp_path)
    page = FIGURES["fig9"].page(runs, "small")
    assert page.blocks[1].rows[0] == ("10x", "-", "50.0 %", "-", "-")
    assert page.blocks[2].rows[0] == ("10x", "-", "-", "-", "-")
    assert page.blocks[3].rows[0][1:] == ("-",) * 5
    assert page.blocks[4].rows[0][-1] == "-"
    assert page.blocks[4].rows[1][1:] == ("289x", "-", "-", "-", "-", "-")
    assert FIGURES["fig9"].figure(runs, "small").axes


def test_runs_of_unlike_settings_are_no_page(tmp_path: Path) -> None:
    write_run(tmp_path, "lstm.dense")
    write_run(tmp_path, "lstm.gravac07", settings={"launch": {"workers": 8, "kind": "simulated"}})
    with pytest.raises(Exception, match=r"^launch\.workers: the same in every run"):
        FIGURES["fig9"].page(read(tmp_path), "small")


def test_variants_are_compared_with_the_run_step_by_step(tmp_path: Path) -> None:
    now = stretches((400, 10), (600, 1000))
    write_model(tmp_path, "resnet101", now, EVENLY, seeds=1)
    later = decisions(stretches((450, 10), (550, 1000)))
    write_run(tmp_path, "resnet101.gravac07_bucket", lr=FALLS, floats=0.01, decided=later)
    page = FIGURES["fig7"].page(read(tmp_path), "small")
    (block,) = [block for block in page.blocks if block.title.startswith("Variants")]
    assert block.rows == (
        ("as the figure", "1", "-", "-", "80", "163x"),
        ("decides a step later", "1", "95.0 %", "95.0 %", "80", "100x"),
        ("a tenth of the window", "0", "-", "-", "-", "-"),
    )
    for other in ("fig8", "fig9", "fig10"):
        blocks = FIGURES[other].page(read(tmp_path), "small").blocks
        assert not [block for block in blocks if block.title.startswith("Variants")]


def test_dense_runs_of_other_seeds_set_the_target_and_change_nothing_else(tmp_path: Path) -> None:
    write_model(tmp_path, "vgg16", EVENLY, MOSTLY_1000, seeds=1)
    before = FIGURES["fig8"].page(read(tmp_path), "small")
    for seed, final in ((1, 70.0), (2, 60.0)):
        write_run(tmp_path, "vgg16.dense", seed=seed, lr=FALLS, final=final)
    runs = read(tmp_path)
    page = FIGURES["fig8"].page(runs, "small")
    assert page.blocks[:-1] == before.blocks[:-1]
    assert page.verdicts == before.verdicts
    changed = [new for new, old in zip(page.numbers, before.numbers, strict=True) if new != old]
    assert {line["row"] for line in changed if line["quantity"] == "quality"} == {"vgg16.target"}
    assert {line["quantity"] for line in changed} <= {"quality", "seconds_to_target", "regret"}
    assert "80 % (dense n = 1)" in before.blocks[-1].text
    assert "60 % (dense n = 3)" in page.blocks[-1].text
    assert dict(page.header)["seeds"] == "0; of dense, for the target, 1, 2 too"
    assert FIGURES["fig8"].figure(runs, "small").get_suptitle().endswith("n = 1")


@pytest.mark.parametrize(("final", "word"), [(70.0, "agrees"), (85.0, "differs")])
def test_a_window_too_small_is_judged_where_it_was_run(
    tmp_path: Path, final: float, word: str
) -> None:
    write_model(tmp_path, "resnet101", MOSTLY_1000, EVENLY)
    for seed in range(3):
        write_run(
            tmp_path, "resnet101.gravac07_short", seed=seed, lr=FALLS, final=final, floats=0.01,
            decided=decisions(MOSTLY_1000),
        )  # fmt: skip
    assert words(FIGURES["fig7"].page(read(tmp_path), "small"))["resnet101.window"] == word


def test_a_curve_that_lies_on_another_says_so_in_the_legend(tmp_path: Path) -> None:
    for seed in range(2):
        for method, final in (("dense", 80.0), ("gravac07", 79.0), ("gravac09", 80.0)):
            write_run(
                tmp_path, f"resnet101.{method}", seed=seed, lr=FALLS, final=final,
                decided=decisions([1.0] * 1000),
            )  # fmt: skip
    (legend,) = FIGURES["fig7"].figure(read(tmp_path), "small").legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "dense",
        "GraVAC, eps 0.7, exponential with DGC",
        "GraVAC, eps 0.9, exponential with DGC (= dense)",
    ]
