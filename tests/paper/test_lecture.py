"""The lecture's quantities: formulas against closed forms, and what is tuned."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dgc_repro.paper.lecture import (
    allreduce,
    batch_size,
    dgc,
    generalization,
    large_batch,
    linear_scaling,
    ptb,
    tuning,
    waiting,
)
from dgc_repro.paper.records import Run

RANDOM = np.random.default_rng(0)

# -- DGC's table


def test_the_notes_are_those_of_the_printed_numbers() -> None:
    counted, speech, resnet = (note.arithmetic for note in dgc.WORDS.notes)
    ratio = dgc.MEGABYTES(dgc.LSTM, dgc.RATIO)
    assert f"1000x counted in floats and {4 / (0.001 * 8):.0f}x" in counted
    assert f"printed {ratio:.0f}x is {4 / (0.001 * ratio):.2f} bytes" in counted
    for text, row in ((speech, dgc.DEEPSPEECH), (resnet, dgc.RESNET50)):
        before, after = (dgc.MEGABYTES(row, column) for column in (dgc.SIZE, dgc.PAYLOAD))
        assert f"{before:g} MB / {after:g} MB = {before / after:.0f}x" in text
        assert f"{4 / (0.001 * before / after):.2f} bytes for each value sent" in text
    assert f"printed {dgc.MEGABYTES(dgc.DEEPSPEECH, dgc.RATIO):.0f}x" in speech
    assert f"the density is {100 * 4 / (8 * 97 / 0.35):.2f} %" in resnet


def test_what_the_last_epoch_sent_is_the_difference_of_two_totals() -> None:
    epochs = pd.DataFrame({"step": [10, 20, 30], "comm/payload_bytes": [5e5, 1e6, 1e6 + 2000]})
    run = Run("r", {}, {}, {}, epochs)
    assert ptb.in_last_epoch("comm/payload_bytes", run) == 2000
    assert ptb.payload_a_step(run) == 200
    assert ptb.in_last_epoch("step", Run("r", {}, {}, {}, epochs[:1])) == 10


# -- studies


def test_growth_is_fitted_by_the_function_that_made_it() -> None:
    counts = pd.Series([4, 16, 64, 256])
    means = counts.map(lambda count: 1 + 2 * math.sqrt(math.log(count)))
    assert waiting.fit(counts, means, waiting.ROOT) == pytest.approx((2, 0), abs=1e-9)
    assert waiting.fit(counts, means, waiting.LOG)[1] > 0.01


def test_sizes_and_times_are_written_in_their_units() -> None:
    sizes = [allreduce.crossing([v]) for v in (0, 12, 4782, 1.5e6, math.inf)]
    assert sizes == ["always", "12 B", "4.78 kB", "1.5 MB", "never"]
    assert [allreduce.seconds([v]) for v in (2.5, 0.0312, 4e-5)] == ["2.5 s", "31.2 ms", "40 µs"]


# -- steps against batch size

BATCHES = (8, 16, 32, 64, 128, 256)


def steps_by_batch(of: Callable[[int], float]) -> pd.Series[float]:
    return pd.Series([of(batch) for batch in BATCHES], BATCHES, dtype=float)


def test_the_fit_finds_the_curve_that_made_the_points() -> None:
    found = batch_size.fitted(steps_by_batch(lambda batch: 50 * (1 + 40 / batch)))
    assert found == pytest.approx((50, 40), rel=1e-4)


@pytest.mark.parametrize("steps", [lambda b: 8000 / b, lambda b: 100, lambda b: 8000 / b**1.05])
def test_a_critical_batch_size_outside_what_was_measured_is_no_number(
    steps: Callable[[int], float],
) -> None:
    assert np.isnan(batch_size.fitted(steps_by_batch(steps))).all()


def test_the_noise_scale_is_that_of_known_moments() -> None:
    """|G|^2 = 3, tr(Sigma) = 80: |g_i|^2 = 3 + 80 / 16 = 8, |mean|^2 = 3 + 80 / 128 = 3.625."""
    config = {"train": {"batch_size": 16, "accumulate": 1}, "launch": {"workers": 8}}
    squares = pd.DataFrame({"own_square": [8.0] * 3, "mean_square": [3.625] * 3})
    assert batch_size.noise_scale(Run("r", config, {}, {}, decisions=squares)) == pytest.approx(
        80 / 3
    )


def tried(steps: dict[float, tuple[float, ...]]) -> pd.DataFrame:
    """Runs at one batch size: steps of the seeds by learning rate."""
    return pd.DataFrame(
        {"row": "cnn", "batch": 8, "rate": rate, "seed": seed, "steps": value}
        for rate, of_seeds in steps.items()
        for seed, value in enumerate(of_seeds)
    )


def test_the_rate_with_the_fewest_steps_of_all_seeds_is_chosen() -> None:
    (line,) = tuning.tuned_of(tried({0.005: (90,), 0.01: (50,), 0.02: (math.inf,)})).to_dict(
        "records"
    )
    assert (line["rate"], line["steps"], line["tried"], line["at_edge"]) == (0.01, 50, 3, False)
    assert tuning.tuned_of(tried({0.005: (90,), 0.01: (50,)}))["at_edge"].all()
    grid = {0.005: (40.0,), 0.01: (50, 60, 70), 0.02: (60, 70, 70), 0.1: (90,)}
    found = tuning.tuned_of(tried(grid))  # seed 0 alone tried 0.005: it shows what was missed
    assert (list(found["rate"]), list(found["at_edge"])) == ([0.01] * 3, [True] * 3)
    found = tuning.tuned_of(tried(grid | {0.005: (51.0,)}))
    assert (set(found["rate"]), set(found["at_edge"])) == ({0.01}, {False})


def test_the_validation_accuracy_chooses_and_a_neighbour_may_be_four_times_away() -> None:
    own = tried({0.01: (40.0, 41.0), 0.03: (60.0, 61.0), 0.1: (50.0, 51.0)}).assign(test=1.0)
    own = own.assign(error=100 - own["steps"])
    found = tuning.tuned_of(own, "error", large_batch.APART)
    assert (set(found["rate"]), set(found["at_edge"])) == ({0.03}, {0.0})
    assert set(tuning.tuned_of(own, "error")["at_edge"]) == {1.0}


@pytest.mark.parametrize(
    ("over", "held"), [({16: 1.0, 32: 2.0, 64: 1.0}, 16), ({16: 2.0, 32: 1.0}, 8)]
)
def test_the_rule_holds_where_steps_are_few(over: dict[int, float], held: int) -> None:
    assert linear_scaling.largest(pd.Series(over), linear_scaling.HOLDS) == held


# -- orders of measures of generalization

GRID = np.array(list(itertools.product((0, 1), repeat=7)))


def test_tau_without_ties_is_scipys_and_a_tie_is_neither_order() -> None:
    mu, g = RANDOM.normal(size=30), RANDOM.normal(size=30)
    assert generalization.tau(mu, g) == pytest.approx(stats.kendalltau(mu, g).statistic)
    assert generalization.tau([1, 2, 2], [1, 2, 3]) == pytest.approx(2 / 3)
    assert generalization.tau([1, np.inf, np.inf], [1, 2, 3]) == pytest.approx(2 / 3)


def test_psi_sees_only_networks_that_differ_in_one_hyper_parameter() -> None:
    """The measure follows the first hyper-parameter, against the order of the others."""
    g = GRID @ [1, 10, 10, 10, 10, 10, 10]
    mu = GRID @ [1, -9, -9, -9, -9, -9, -9]
    assert (generalization.psi(mu, g, GRID, 0), generalization.psi(mu, g, GRID, 1)) == (1, -1)
    assert generalization.tau(mu, g) < 0
    assert np.isnan(generalization.psi(mu[:1], g[:1], GRID[:1], 0))


def test_rates_of_each_optimizer_are_numbered_by_themselves() -> None:
    runs = []
    for batch, dropout, rate, depth, lamb, decay, width in GRID.tolist():
        optimizer = {"lr": (0.1 if lamb else 0.01) * (1 + rate), "weight_decay": 0.01 * decay}
        model = {"width": 4 + 4 * width, "layers": 2 + depth, "dropout": 0.2 * dropout}
        config = {
            "experiment": {"optimizer": "lamb" if lamb else "sgd"}, "optimizer": optimizer, "model": model,
            "train": {"batch_size": 8 + 8 * batch},
        }  # fmt: skip
        runs.append(Run("r", config, {}, {}))
    assert (generalization.settings(runs) == GRID).all()
