"""Linear learning-rate scaling: the base rate, the runs of the rule, and verdicts on made-up runs."""

from __future__ import annotations

import math

import pytest
from synthetic import words

from dgc_repro.paper.lecture import linear_scaling
from dgc_repro.paper.records import Run

BATCHES = (8, 16, 32, 64)
BASE_RATE = 0.004


def run_of(batch: int, rate: float, seed: int, steps: float, warmup: float = 0.0) -> Run:
    reached = math.isfinite(steps)
    config = {
        "seed": seed, "scale": {"name": "quick"}, "dataset": {"name": "digits"},
        "schedule": {"warmup_epochs": warmup}, "model": {"width": 4},
        "experiment": {"paper": "lecture", "artifact": "batch_size",
                       "row": f"cnn_digits.b{batch}x1x1_lr{rate:g}_{warmup:g}"},
        "train": {"batch_size": batch, "accumulate": 1}, "launch": {"workers": 1, "kind": "simulated"},
        "optimizer": {"lr": rate, "momentum": 0.9}, "stopping": {"target": 95.0, "metric": "accuracy"},
    }  # fmt: skip
    stopping = {"reached": reached, **({"step": steps} if reached else {})}
    return Run(
        f"{batch}-{rate}-{warmup}-s{seed}", config, {"data": "digits"}, {"stopping": stopping}
    )


def runs(plain: dict[int, float], warm: dict[int, float]) -> list[Run]:
    """100 steps with the tuned rate, which is the base rate for every batch size; the rule's rates need so
    many times more."""
    found = []
    for seed in range(3):
        for batch in BATCHES:
            found += [
                run_of(batch, BASE_RATE * f, seed, 100 + 50 * (f != 1)) for f in (0.5, 1, 1.5)
            ]
        for batch, times in plain.items():
            found.append(run_of(batch, BASE_RATE * batch / 8, seed, 100 * times))
        for batch, times in warm.items():
            found.append(run_of(batch, BASE_RATE * batch / 8, seed, 100 * times, 5.0))
    return found


def test_a_rule_that_breaks_and_holds_longer_with_warm_up_agrees() -> None:
    found = runs({16: 1.1, 32: 1.2, 64: math.inf}, {16: 1.2, 32: 1.2, 64: 1.1})
    told = words(linear_scaling.page(found, "quick"))
    assert [told[f"cnn_digits.{name}"] for name in ("twice", "breaks", "warmup", "reaches")] == [
        "agrees"
    ] * 4
    assert told["cnn_cifar10.twice"] == "not run"


def test_a_rule_that_never_breaks_differs() -> None:
    always = dict.fromkeys((16, 32, 64), 1.01)
    told = words(linear_scaling.page(runs(always, always), "quick"))
    assert (told["cnn_digits.breaks"], told["cnn_digits.warmup"]) == ("differs", "differs")
    worse = words(linear_scaling.page(runs({16: 2.0, 32: 2.0, 64: 2.0}, always), "quick"))
    assert (worse["cnn_digits.twice"], worse["cnn_digits.warmup"]) == ("differs", "agrees")


def test_a_rule_that_was_not_run_at_every_batch_size_is_not_judged() -> None:
    found = words(linear_scaling.page(runs({16: 1.0}, {16: 1.0}), "quick"))
    assert {found[f"cnn_digits.{name}"] for name in ("breaks", "warmup", "reaches")} == {"not run"}


@pytest.mark.parametrize(
    ("over", "held"), [({16: 1.0, 32: 2.0, 64: 1.0}, 16), ({16: 2.0, 32: 1.0}, 8), ({}, 8)]
)
def test_the_rule_holds_where_steps_are_few(over: dict[int, float], held: int) -> None:
    assert linear_scaling.largest(over, linear_scaling.HOLDS) == held
