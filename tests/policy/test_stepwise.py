"""Stepwise: down the ladder as learning proceeds, dense for a while when it stagnates."""

from __future__ import annotations

import copy
import io
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dgc_repro.policy.interface import EpochReport, State
from dgc_repro.policy.stepwise import Stepwise

VALUES = (16, 12, 8, 4)
THRESHOLDS = (50.0, 70.0, 80.0)


def stepwise(**settings: Any) -> Stepwise:
    return Stepwise(
        **{"field": "bits", "values": VALUES, "accuracy_thresholds": THRESHOLDS} | settings
    )


def after(policy: Stepwise, epochs: list[tuple[float, float]]) -> tuple[list[int], State]:
    """The rung planned for each epoch and the one after, from (accuracy, training loss) of each."""
    state = policy.init()
    rungs = []
    for epoch, (accuracy, loss) in enumerate(epochs, 1):
        rungs.append(policy.plan(state, epoch).rung)
        state = policy.observe(state, EpochReport(epoch, loss, loss, accuracy))
    rungs.append(policy.plan(state, len(epochs) + 1).rung)
    assert all(rung is not None for rung in rungs)
    return [int(rung) for rung in rungs if rung is not None], state


def test_it_begins_with_the_strongest_setting() -> None:
    assert after(stepwise(), [])[0] == [4]


def test_each_threshold_passed_is_a_step_down() -> None:
    rungs, _ = after(stepwise(), [(10, 2), (50, 1.5), (69.9, 1.2), (70, 1), (85, 0.5), (99, 0.1)])
    assert rungs == [4, 4, 3, 3, 2, 1, 1]


def test_a_jump_passes_several_thresholds_at_once() -> None:
    rungs, state = after(stepwise(), [(75, 1)])
    assert rungs == [4, 2]
    assert state["trace"][0]["reason"] == "validation accuracy 75.00 % passed 70 %"


def test_steps_are_never_taken_back() -> None:
    rungs, _ = after(stepwise(dense_epochs=0), [(75, 1), (10, 3), (0, 9), (math.nan, math.nan)])
    assert rungs == [4, 2, 2, 2, 2]


def test_a_flat_loss_takes_one_step_an_epoch() -> None:
    policy = stepwise(loss_differences=(0.1, 0.05, 0.01))
    losses = [2.0, 1.95, 1.91, 1.85, 1.845, 1.845]
    rungs, state = after(policy, [(10, loss) for loss in losses])
    # |2.0 - 1.95| < 0.1; 0.04 < 0.05; 0.06 is not < 0.01; 0.005 is; at the end of the ladder.
    assert rungs == [4, 4, 3, 2, 2, 1, 1]
    reasons = [entry["reason"] for entry in state["trace"]]
    assert reasons[1] == "loss changed by 0.0500, less than 0.1"
    assert reasons[0] == reasons[3] == reasons[5] == ""


def test_a_loss_that_is_no_number_takes_no_step() -> None:
    policy = stepwise(loss_differences=(9.0, 9.0, 9.0))
    for broken in (math.nan, math.inf):
        assert after(policy, [(10, 2), (10, broken), (10, 2)])[0] == [4, 4, 4, 4]


def test_stagnation_removes_compression_and_it_returns() -> None:
    policy = stepwise(patience_epochs=3, dense_epochs=2)
    rungs, state = after(policy, [(10, 1)] * 10)
    # Three epochs on a step, two dense, and once more: dense epochs do not count.
    assert rungs == [4, 4, 4, 0, 0, 4, 4, 4, 0, 0, 4]
    reasons = [entry["reason"] for entry in state["trace"]]
    assert reasons[2] == reasons[7] == "no step for 3 epochs, compression removed"
    assert reasons[4] == reasons[9] == "dense interval over, compression returns"
    assert [r for i, r in enumerate(reasons) if i not in (2, 4, 7, 9)] == [""] * 6


def test_a_step_begins_the_patience_anew() -> None:
    policy = stepwise(patience_epochs=3, dense_epochs=1)
    rungs, _ = after(policy, [(10, 1), (10, 1), (55, 1), (55, 1), (55, 1), (55, 1), (55, 1)])
    assert rungs == [4, 4, 4, 3, 3, 3, 0, 3]


def test_a_threshold_passed_while_dense_ends_the_interval_one_step_down() -> None:
    policy = stepwise(patience_epochs=1, dense_epochs=5)
    assert after(policy, [(10, 1), (60, 1), (60, 1)])[0] == [4, 0, 3, 0]


def test_without_dense_epochs_stagnation_changes_nothing() -> None:
    assert after(stepwise(patience_epochs=1, dense_epochs=0), [(10, 1)] * 4)[0] == [4] * 5


def test_the_trace_tells_every_epoch() -> None:
    _, state = after(stepwise(), [(10, 2), (55, 1)])
    assert state["trace"][1] == {
        "epoch": 2,
        "validation_accuracy_percent": 55,
        "train_loss": 1,
        "rung": 4,
        "next_rung": 3,
        "reason": "validation accuracy 55.00 % passed 50 %",
    }
    assert [entry["epoch"] for entry in state["trace"]] == [1, 2]


EPOCHS = st.lists(
    st.tuples(st.floats(0, 100) | st.just(math.nan), st.floats(0, 5) | st.just(math.inf)),
    max_size=25,
)


@given(EPOCHS, st.integers(1, 4), st.integers(0, 3), st.none() | st.just((0.5, 0.1, 0.01)))
def test_whatever_it_sees_it_only_steps_down_and_keeps_no_secrets(
    epochs: list[tuple[float, float]],
    patience: int,
    dense: int,
    differences: tuple[float, ...] | None,
) -> None:
    policy = stepwise(patience_epochs=patience, dense_epochs=dense, loss_differences=differences)
    state = policy.init()
    position = 0
    for epoch, (accuracy, loss) in enumerate(epochs, 1):
        before = copy.deepcopy(state)
        report = EpochReport(epoch, loss, loss, accuracy)
        following = policy.observe(state, report)
        assert repr(state) == repr(before), "observe changed the state it was given"
        assert repr(policy.observe(state, report)) == repr(following)
        assert following["position"] >= position
        rung = policy.plan(following, epoch).rung
        assert rung is not None
        assert rung == 0 or rung == len(VALUES) - following["position"]
        assert following["trace"][-1]["next_rung"] == rung
        state, position = following, following["position"]
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert repr(torch.load(file, weights_only=True)) == repr(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"accuracy_thresholds": (50.0, 70.0)},
            "accuracy_thresholds: one for each step down, 3 for the 4",
        ),
        ({"accuracy_thresholds": ()}, "accuracy_thresholds: one for each step down, 3 for the 4"),
        (
            {"accuracy_thresholds": (70, 50, 80)},
            "accuracy_thresholds: percentages (0 to 100), ascending",
        ),
        (
            {"accuracy_thresholds": (50, 70, 101)},
            "accuracy_thresholds: percentages (0 to 100), ascending",
        ),
        (
            {"accuracy_thresholds": (-1, 70, 80)},
            "accuracy_thresholds: percentages (0 to 100), ascending",
        ),
        (
            {"accuracy_thresholds": (50, math.nan, 80)},
            "accuracy_thresholds: percentages (0 to 100), ascending",
        ),
        (
            {"loss_differences": (0.1,)},
            "loss_differences: one for each step down, 3 for the 4 values",
        ),
        (
            {"loss_differences": (0.1, -1, 0.1)},
            "loss_differences: a list, each a number from 0, or null",
        ),
        ({"patience_epochs": 0}, "patience_epochs: a whole number from 1"),
        ({"dense_epochs": -1}, "dense_epochs: a whole number from 0, got -1"),
        ({"values": ()}, "values: a list of one or more settings"),
        ({"values": (8, 8, 4, 2)}, "values: a list of one or more settings"),
        ({"field": None}, "field: a word, got None"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        stepwise(**settings)


def test_a_ladder_of_one_setting_needs_no_thresholds() -> None:
    policy = stepwise(values=(4,), accuracy_thresholds=(), patience_epochs=1)
    assert after(policy, [(99, 1), (99, 1)])[0] == [1, 0, 1]
