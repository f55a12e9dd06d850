"""The benchmark's classes: which losses are shown to be equivalent, better or worse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dgc_repro.paper.benchmark.classes import MOST_MORE, WORDS, _words, judge
from dgc_repro.paper.benchmark.workloads import Workload

POINTS = Workload("images", "accuracy_percent", 0.5)
PERCENT = Workload("text", "loss", 0.5)


def _around(mean: float, n: int = 6, spread: float = 0.1) -> list[float]:
    """Losses with this mean and this standard deviation."""
    values = np.linspace(-1, 1, n)
    return list(mean + spread * values / values.std(ddof=1))


def _word(losses: list[float], workload: Workload = POINTS) -> str:
    return judge({"a": losses}, workload).shown["a"].word


def test_each_class_has_its_losses() -> None:
    assert _word(_around(0.1)) == "equivalent"
    assert _word(_around(0.3)) == "equivalent"  # and above 0
    assert _word(_around(0.8)) == "worse"
    assert _word(_around(-0.8)) == "better"
    assert _word(_around(0.45, spread=0.3)) == "worse"  # above 0, perhaps above the margin
    assert _word(_around(0.1, spread=3.0)) == "undecided"
    assert _word([0.0, 0.0, 0.0]) == "equivalent"  # the same training as dense


def test_fewer_than_three_seeds_decide_nothing_and_a_diverged_seed_is_worse() -> None:
    assert _word([5.0, 5.1]) == "undecided"
    diverged = judge({"a": [0.1, math.inf, 0.1]}, POINTS).shown["a"]
    assert (diverged.word, diverged.mean, diverged.interval) == ("worse", math.inf, "-")


def test_percentages_are_judged_as_logarithms() -> None:
    """A perplexity that is doubled in one seed and halved in the next one is unchanged in the mean."""
    shown = judge({"a": [100.0, -50.0, 100.0, -50.0]}, PERCENT).shown["a"]
    assert shown.mean == pytest.approx(0.0)
    assert 1 + shown.high / 100 == pytest.approx(1 / (1 + shown.low / 100))
    assert _word(_around(0.1), PERCENT) == "equivalent"


def test_among_many_settings_a_single_one_needs_more() -> None:
    """An interval above 0 shows one setting to be worse, not one of fifty."""
    noise = np.random.default_rng(0)
    others = {f"o{i}": list(noise.normal(0, 1, 3)) for i in range(49)}
    row = _around(1.5, n=3, spread=1.0)
    alone = judge({"a": row} | dict(list(others.items())[:9]), POINTS)
    many = judge({"a": row} | others, POINTS)
    assert many.shown["a"].low > 0
    assert many.shown["a"].word == "undecided"
    assert alone.prior is not None


@pytest.mark.parametrize("workload", [POINTS, PERCENT], ids=["points", "percent"])
def test_settings_without_a_loss_are_seldom_called_worse_or_better(workload: Workload) -> None:
    """Error rates over 400 tables of 20 settings that share their dense runs, at n = 3. No word may be wrong
    in more than 5 % of tables, beside the scatter of 400 tables (two standard errors: 2.2 %)."""
    noise = np.random.default_rng(1)
    wrong = {"differs": 0, "equivalent": 0}
    for _ in range(400):
        dense = noise.normal(0, 1, 3)
        for question, true in (("differs", 0.0), ("equivalent", workload.margin)):
            losses = {f"r{i}": list(true + noise.normal(0, 1, 3) - dense) for i in range(20)}
            words = {shown.word for shown in judge(losses, workload).shown.values()}
            wrong[question] += bool(words & ({"better", "worse"} if true == 0 else {"equivalent"}))
    assert max(wrong.values()) <= (0.05 + 0.022) * 400


def test_at_most_agrees_with_the_classes() -> None:
    losses = {
        "small": _around(0.1),
        "worse": _around(0.8),
        "better": _around(-3.0),
        "wide": _around(0.1, 6, 3.0),
    }
    judged = judge(losses, POINTS)
    assert judged.at_most(POINTS.margin) == {"small", "better"}
    assert judged.at_most(1.5) == {"small", "better", "worse"}
    assert [judged.shown[row].word for row in losses] == [
        "equivalent",
        "worse",
        "better",
        "undecided",
    ]
    assert {shown.word for shown in judged.shown.values()} == set(WORDS)


@pytest.mark.parametrize("workload", [POINTS, PERCENT], ids=["points", "percent"])
@pytest.mark.parametrize("mean", [0.1, 0.35, 1.2, -0.8])
def test_so_many_more_seeds_decide_a_row_and_one_less_does_not(
    mean: float, workload: Workload
) -> None:
    """The row is judged again with as many more seeds that leave its mean and its spread as they are."""
    losses = {"a": _around(mean, n=4, spread=0.9), "b": _around(0.05, n=4, spread=0.2)}

    def word(more: int) -> str:
        one = judge(losses, workload)
        longer = one.estimates | {"a": one.estimates["a"].extended(more)}
        return _words(list(longer.values()), workload)[0]

    judged = judge(losses, workload)
    assert judged.shown["a"].word == "undecided"
    more = judged.more_seeds("a")
    assert more is not None
    assert 1 <= more <= MOST_MORE
    assert word(more) != "undecided"
    assert word(more - 1) == "undecided"


def test_more_seeds_of_one_row_agree_with_judging_them() -> None:
    """Values whose standard deviation is the same for each n."""
    more = judge({"a": _around(0.3, n=4, spread=0.5)}, POINTS).more_seeds("a")
    assert more is not None
    assert _word(_around(0.3, n=4 + more, spread=0.5)) != "undecided"
    assert _word(_around(0.3, n=3 + more, spread=0.5)) == "undecided"


def test_no_number_of_seeds_is_known_for_a_row_without_a_spread_or_at_the_margin() -> None:
    judged = judge({"few": [5.0, 5.1], "margin": _around(1e-3, n=4, spread=50.0)}, POINTS)
    assert judged.more_seeds("few") is None
    assert judged.more_seeds("margin") is None  # more than MOST_MORE
    assert judge({"a": _around(0.8)}, POINTS).more_seeds("a") == 0


def test_a_class_alone_has_no_correction_for_other_settings() -> None:
    row = _around(0.4, n=3, spread=0.25)
    others = {f"o{i}": _around(0.0, n=3, spread=0.25) for i in range(30)}
    among = judge({"a": row} | others, POINTS).shown["a"]
    assert (among.word, among.alone) == ("undecided", "worse")
    single = judge({"a": row}, POINTS).shown["a"]
    assert single.word == single.alone
