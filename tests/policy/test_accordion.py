"""Accordion: critical regimes by layer."""

from __future__ import annotations

from typing import Any

from dgc_repro.policy.accordion import Accordion
from dgc_repro.policy.interface import EpochReport, State


def accordion(**settings: Any) -> Accordion:
    return Accordion(**{"field": "density", "values": (0.1, 0.01)} | settings)


def epoch(
    policy: Accordion, state: State, number: int, norms: dict[str, float], next_lr: float = 1.0
) -> State:
    report = EpochReport(number, 1.0, 1.0, 50.0, (1.0, next_lr), norms)
    return policy.observe(state, report)


def rungs(policy: Accordion, state: State, *names: str) -> list[int | None]:
    return [policy.plan(state, 0).for_tensor(name) for name in names]


def test_it_begins_with_low_compression() -> None:
    policy = accordion()
    state = policy.init()
    assert rungs(policy, state, "a", "b") == [1, 1]
    state = epoch(policy, state, 1, {"a": 4.0, "b": 4.0})
    assert rungs(policy, state, "a", "b") == [1, 1]


def test_each_layer_is_judged_by_itself() -> None:
    policy = accordion()
    state = epoch(policy, policy.init(), 1, {"a": 4.0, "b": 4.0, "c": 4.0})
    state = epoch(policy, state, 2, {"a": 2.0, "b": 2.1, "c": 6.0})
    assert rungs(policy, state, "a", "b", "c") == [1, 2, 1]  # 50 %, 47.5 %, 50 % (upwards)
    state = epoch(policy, state, 3, {"a": 2.0, "b": 0.5, "c": 6.0})
    assert rungs(policy, state, "a", "b", "c") == [2, 1, 2]


def test_a_learning_rate_about_to_decay_is_critical() -> None:
    policy = accordion()
    state = epoch(policy, policy.init(), 1, {"a": 4.0})
    state = epoch(policy, state, 2, {"a": 4.0})
    assert rungs(policy, state, "a") == [2]
    state = epoch(policy, state, 3, {"a": 4.0}, next_lr=0.1)
    assert rungs(policy, state, "a") == [1]
    assert state["trace"][-1]["reason"] == "the learning rate decays"
    assert rungs(policy, epoch(policy, state, 4, {"a": 4.0}, next_lr=0.97), "a") == [2]  # cosine
    blind = accordion(decay=None)
    state = epoch(blind, epoch(blind, blind.init(), 1, {"a": 4.0}), 2, {"a": 4.0}, next_lr=0.1)
    assert rungs(blind, state, "a") == [2]


def test_it_compares_an_epoch_with_the_one_an_interval_before() -> None:
    """As the published code does with its switch_freq: after epochs 1, 1 + interval, and so on."""
    policy = accordion(interval=2)
    state, judged = policy.init(), []
    for number, norm in enumerate((4.0, 99.0, 4.0, 99.0, 1.0, 99.0), 1):
        state = epoch(policy, state, number, {"a": norm})
        judged += rungs(policy, state, "a")
    assert judged == [1, 1, 2, 2, 1, 1]  # 4 against 4, 1 against 4: epochs between are not compared
    assert [entry["epoch"] for entry in state["trace"]] == [1, 3, 5]
