"""The benchmark's classes: which settings are equivalent, cost or are better, and how often that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from scipy import stats

from dgc_repro.paper.benchmark.classes import MOST_MORE, WORDS, Judged, judge
from dgc_repro.paper.benchmark.workloads import Workload, workloads
from dgc_repro.paper.statistics import Sample

POINTS = Workload("images", "accuracy_percent", 0.5)
PERCENT = Workload("text", "loss", 1.0)
BASE = {POINTS: 80.0, PERCENT: 2.0}
SD = {POINTS: 0.25, PERCENT: 0.4}
Rows = Mapping[str, Sequence[float]]


def samples(values: Sequence[float], block: str = "") -> list[Sample]:
    return [Sample(float(value), seed, block) for seed, value in enumerate(values)]


def judged(costs: Rows, workload: Workload = POINTS, dense: Sequence[float] = ()) -> Judged:
    """Judge rows by their costs, one a seed. ``dense``: by how much dense training varies by seed."""
    count = max(map(len, costs.values()))
    base = [BASE[workload] + one for one in (dense or [0.0] * count)]
    rows = {"dense": samples(base)}
    for row, own in costs.items():
        rows[row] = samples(
            [b - c for b, c in zip(base, own, strict=False)]
            if workload.is_difference
            else [b * (1 + c / 100) for b, c in zip(base, own, strict=False)]
        )
    return judge(rows, "dense", workload)


def around(mean: float, n: int = 6, spread: float = 0.1) -> list[float]:
    """Costs with this mean and this standard deviation."""
    values = np.linspace(-1, 1, n)
    return list(mean + spread * values / values.std(ddof=1))


def word(costs: Sequence[float], workload: Workload = POINTS) -> str:
    return judged({"a": costs}, workload).shown["a"].word


@pytest.mark.parametrize("workload", [POINTS, PERCENT], ids=["points", "percent"])
def test_each_class_has_its_costs(workload: Workload) -> None:
    margin = workload.margin
    found = {
        (mean, spread): word(around(mean * margin, 6, spread * margin), workload)
        for mean, spread in (
            (0.2, 0.2),
            (0.6, 0.2),
            (1.6, 0.2),
            (-1.6, 0.2),
            (0.9, 0.6),
            (0.2, 6.0),
        )
    }
    assert [*found.values()] == [
        *("equivalent", "equivalent", "costs", "better"),
        *("costs", "undecided"),  # above 0, and perhaps above the margin
    ]
    assert {*found.values()} == {*WORDS}


def test_fewer_than_three_seeds_decide_nothing_and_a_diverged_seed_costs() -> None:
    assert word([5.0, 5.1]) == "undecided"
    for workload, worst in ((POINTS, -math.inf), (PERCENT, math.inf)):
        rows = {"dense": samples(around(BASE[workload])), "a": samples([2.0, worst, 2.0])}
        shown = judge(rows, "dense", workload).shown["a"]
        assert (shown.word, shown.mean, shown.interval) == ("costs", math.inf, "-")
        assert shown.cost == "diverged in 1 of 3"


def test_an_interval_of_zero_width_is_no_verdict() -> None:
    assert word([0.7, 0.7, 0.7], PERCENT) == "undecided"
    assert word([0.0, 0.0, 0.0], PERCENT) == "undecided"  # the same training as dense
    alike = {"dense": samples([80.0] * 3), "a": samples([79.0] * 3)}
    assert judge(alike, "dense", POINTS).shown["a"].word == "undecided"


def test_percentages_are_judged_as_logarithms() -> None:
    """A perplexity that is doubled in one seed and halved in the next one is unchanged in the mean."""
    shown = judged({"a": [100.0, -50.0, 100.0, -50.0]}, PERCENT).shown["a"]
    assert shown.mean == pytest.approx(0.0)
    assert 1 + shown.high / 100 == pytest.approx(1 / (1 + shown.low / 100))


def test_rows_are_compared_within_a_kind_of_processor() -> None:
    """Kinds that differ by 5 points do not count as an effect, nor do values without dense training beside
    them."""
    xeon, epyc = [80.0, 80.2, 79.8], [85.0, 85.2, 84.8]
    rows = {
        "dense": [*samples(xeon, "xeon"), *samples(epyc, "epyc")],
        "a": [*samples([v - 1 for v in xeon], "xeon"), *samples([v - 1 for v in epyc], "epyc")],
        "b": [*samples(xeon, "xeon"), *samples([0.0, 0.0], "arm")],
    }
    shown = judge(rows, "dense", POINTS).shown
    assert (shown["a"].mean, shown["a"].n) == (pytest.approx(1.0), 6)
    assert (shown["b"].mean, shown["b"].n) == (pytest.approx(0.0), 3)
    ratios = {"dense": samples(xeon, "xeon"), "a": [*samples(xeon, "xeon"), *samples([9.0], "arm")]}
    assert judge(ratios, "dense", PERCENT).shown["a"].n == 3


@pytest.mark.parametrize("workload", [POINTS, PERCENT], ids=["points", "percent"])
def test_a_row_that_is_added_changes_no_other_class(workload: Workload) -> None:
    """The rows of the first family tell the variances, and Holm's correction is that of the family."""
    noise = np.random.default_rng(2)
    dense = noise.normal(0, 0.2, 4)
    costs = {f"r{i}": list(i / 4 + noise.normal(0, 0.3, 4)) for i in range(8)}
    base = {"dense": samples(BASE[workload] + dense)}
    rows = base | {
        row: samples(BASE[workload] + dense + noise.normal(i / 20, 0.02, 4))
        for i, row in enumerate(costs)
    }
    wild = {"wild": samples(BASE[workload] + np.array([0.5, -0.7, 0.9, -0.1]))}
    first = judge(rows, "dense", workload, [[*costs]])
    second = judge(rows | wild, "dense", workload, [[*costs], ["wild"]])
    for row in costs:
        assert first.shown[row] == second.shown[row]
    assert second.shown["wild"].survives is not None
    assert judge(rows | wild, "dense", workload, [[*costs]]).shown["wild"].survives is None


def test_among_many_settings_a_single_one_needs_more() -> None:
    noise = np.random.default_rng(0)
    others = {f"o{i}": list(noise.normal(0, 0.25, 3)) for i in range(49)}
    shown = judged({"a": [0.35, 0.45, 0.4]} | others, dense=list(noise.normal(0, 0.1, 3))).shown[
        "a"
    ]
    assert (shown.word, shown.survives, shown.family) == ("costs", False, "no")


@pytest.mark.parametrize("name", ["low", "air", "gpt", "char_lstm"])
def test_every_class_can_be_reached_with_the_planned_seeds(name: str) -> None:
    """With the seeds of the families (conf/paper/benchmark.yaml) and the standard deviations of the published
    runs, an effect of 0, of two margins and of minus two margins get their classes."""
    workload = workloads()[name]
    n, of_dense, sd = {
        "low": (8, 15, 0.27), "air": (5, 5, 0.29), "gpt": (7, 10, 0.5), "char_lstm": (3, 3, 0.5),
    }[name]  # fmt: skip
    kind = POINTS if workload.is_difference else PERCENT
    noise = np.random.default_rng(3)
    rows: dict[str, list[Sample]] = {"dense": samples(BASE[kind] * np.ones(of_dense))}
    for i in range(len(workload.families[0].rows)):
        effect = {0: 0.0, 1: 2.0, 2: -2.0}.get(i, float(noise.uniform(0, 3))) * workload.margin
        costs = around(effect, n, sd)
        noise.shuffle(costs)
        rows[f"r{i}"] = samples(
            BASE[kind] - np.array(costs) if workload.is_difference
            else BASE[kind] * (1 + np.array(costs) / 100)
        )  # fmt: skip
    shown = judge(rows, "dense", workload._replace(families=())).shown
    assert [shown[f"r{i}"].word for i in range(3)] == ["equivalent", "costs", "better"]


# Coverage


def sd_of_effects(
    kind: str, count: int, noise: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Effects and standard deviations of the rows of a world, in percent or points."""
    effects, sds = np.zeros(count), np.full(count, 0.45)
    third = count // 3
    if kind == "small":
        effects = noise.uniform(-0.3, 1, count)
    elif kind == "near-identical":
        effects = np.r_[np.full(third, 0.005), noise.uniform(-0.3, 20, count - third)]
        sds = np.r_[np.full(third, 0.01), 0.35 + 0.05 * np.abs(effects[third:])]
    elif kind == "chaotic":
        effects = np.r_[noise.uniform(-0.3, 1, third), noise.uniform(5, 40, count - third)]
        sds = np.r_[np.full(third, 0.35), noise.uniform(1, 3, count - third)]
    return effects, sds


def coverage(
    workload: Workload, kind: str, n: int, reps: int, of: Callable[[int, int], bool]
) -> tuple[int, int]:
    """How many intervals of the rows that ``of`` (number, count) picks cover their effect, of how many."""
    noise, count, hits, total = np.random.default_rng(n), 12, 0, 0
    for _ in range(reps):
        effects, sds = sd_of_effects(kind, count, noise)
        dense, rows = noise.normal(0, 1, n), {}
        if workload.is_difference:
            sds = np.full(count, 0.25)
            rows["dense"] = samples(80 + 0.25 * dense)
        else:
            rows["dense"] = samples(np.full(n, 2.0))
        for i in range(count):
            own = noise.normal(0, 1, n)
            rows[f"r{i}"] = samples(
                80 + 0.25 * own - effects[i] if workload.is_difference
                # a ratio to the dense run of the seed, whose noise all rows share
                else 2.0 * np.exp(np.log1p(effects[i] / 100) + sds[i] / 100 * (own - dense) / 2**0.5)
            )  # fmt: skip
        shown = judge(rows, "dense", workload).shown
        for i in range(count):
            if of(i, count):
                hits += shown[f"r{i}"].low <= effects[i] <= shown[f"r{i}"].high
                total += 1
    return hits, total


@pytest.mark.parametrize("kind", ["none", "small", "near-identical", "chaotic"])
@pytest.mark.parametrize("workload", [POINTS, PERCENT], ids=["points", "percent"])
@pytest.mark.parametrize("n", [3, 6])
def test_intervals_cover_in_94_to_96_percent(workload: Workload, kind: str, n: int) -> None:
    """Of all rows together: 94 to 96 %, and what the scatter of 150 worlds allows, whose rows share dense
    training (a design effect of 3)."""
    hits, total = coverage(workload, kind, n, 150, lambda i, count: True)
    scatter = stats.norm.ppf(0.999) * math.sqrt(0.95 * 0.05 / (total / 3))
    assert 0.94 - scatter < hits / total < 0.96 + scatter, hits / total


def test_near_identical_rows_are_not_widened_by_chaotic_ones() -> None:
    rows = {f"c{i}": list(20 + 5 * np.random.default_rng(i).normal(0, 1, 3)) for i in range(9)}
    near = [-0.001, 0.006, 0.020]  # fp16 of the LSTM on words
    shown = judged(rows | {"fp16": near}, PERCENT).shown["fp16"]
    assert (round(shown.low, 2), round(shown.high, 2)) == (-0.02, 0.03)
    assert shown.word == "equivalent"


# How many more seeds


@pytest.mark.parametrize("mean", [0.3, 0.45, -0.35])
def test_so_many_more_seeds_decide_a_row_and_one_less_does_not(mean: float) -> None:
    """Judged again with values whose standard deviation is the same for each n."""
    more = judged({"a": around(mean, 4, 0.6)}, PERCENT).more_seeds("a")
    assert more is not None
    assert 1 <= more <= MOST_MORE
    assert word(around(mean, 4 + more, 0.6), PERCENT) != "undecided"
    assert word(around(mean, 3 + more, 0.6), PERCENT) == "undecided"


def test_more_seeds_of_a_row_do_not_narrow_what_dense_training_leaves_open() -> None:
    """Three seeds of dense training: no number of the row's own decides a cost of half a standard error."""
    rows = {"dense": samples([80.0, 80.4, 79.6]), "a": samples([79.7, 80.1, 79.3])}
    noise = np.random.default_rng(4)
    rows |= {f"o{i}": samples(79 + noise.normal(0, 0.3, 3)) for i in range(6)}
    found = judge(rows, "dense", POINTS)
    assert found.shown["a"].word == "undecided"
    assert found.more_seeds("a") is None


def test_no_number_of_seeds_is_known_for_a_row_without_a_spread() -> None:
    assert judged({"few": [5.0, 5.1]}).more_seeds("few") is None
    assert judged({"a": around(0.8)}).more_seeds("a") == 0
