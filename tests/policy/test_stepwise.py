"""Stepwise: down the ladder as learning proceeds, dense for a while when it stagnates."""

from __future__ import annotations

import copy
import io
import math
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


NAN, INF = math.nan, math.inf
FLAT = {"loss_differences": (0.1, 0.05, 0.01)}
REMOVED, RETURNS = (
    "no step for 3 epochs, compression removed",
    "dense interval over, compression returns",
)


@pytest.mark.parametrize(
    ("settings", "epochs", "rungs", "reasons"),
    [
        # It begins with the strongest setting; each threshold passed is a step down, several at once too.
        ({}, [], [4], {}),
        ({}, [(10, 2), (50, 1.5), (69.9, 1.2), (70, 1), (85, 0.5), (99, 0.1)], [4, 4, 3, 3, 2, 1, 1], {}),
        ({}, [(75, 1)], [4, 2], {0: "validation accuracy 75.00 % passed 70 %"}),
        # Steps are never taken back.
        ({"dense_epochs": 0}, [(75, 1), (10, 3), (0, 9), (NAN, NAN)], [4, 2, 2, 2, 2], {}),
        # A flat loss takes one step an epoch: |2.0 - 1.95| < 0.1; 0.04 < 0.05; 0.06 and 0.015 are not < 0.01;
        # 0.005 is; then the ladder ends.
        (FLAT, [(10, loss) for loss in (2.0, 1.95, 1.91, 1.85, 1.835, 1.83, 1.83)],
         [4, 4, 3, 2, 2, 2, 1, 1],
         {0: "", 1: "loss changed by 0.0500, less than 0.1", 3: "", 4: "", 6: ""}),
        # A loss that is no number takes none.
        *(({"loss_differences": (9.0, 9.0, 9.0)}, [(10, 2), (10, broken), (10, 2)], [4, 4, 4, 4], {})
          for broken in (NAN, INF)),
        # Three epochs on a step, two dense, and once more: dense epochs do not count.
        ({"patience_epochs": 3, "dense_epochs": 2}, [(10, 1)] * 10, [4, 4, 4, 0, 0, 4, 4, 4, 0, 0, 4],
         {2: REMOVED, 4: RETURNS, 7: REMOVED, 9: RETURNS, **dict.fromkeys((0, 1, 3, 5, 6, 8), "")}),
        # A step begins the patience anew.
        ({"patience_epochs": 3, "dense_epochs": 1}, [(10, 1)] * 2 + [(55, 1)] * 5,
         [4, 4, 4, 3, 3, 3, 0, 3], {}),
        # A threshold passed while dense ends the interval one step down.
        ({"patience_epochs": 1, "dense_epochs": 5}, [(10, 1), (60, 1), (60, 1)], [4, 0, 3, 0], {}),
        # Without dense epochs stagnation changes nothing; a ladder of one setting needs no thresholds.
        ({"patience_epochs": 1, "dense_epochs": 0}, [(10, 1)] * 4, [4] * 5, {}),
        ({"values": (4,), "accuracy_thresholds": (), "patience_epochs": 1}, [(99, 1)] * 2, [1, 0, 1], {}),
    ],
)  # fmt: skip
def test_rungs_and_their_reasons(
    settings: dict[str, Any],
    epochs: list[tuple[float, float]],
    rungs: list[int],
    reasons: dict[int, str],
) -> None:
    found, state = after(stepwise(**settings), epochs)
    assert found == rungs
    assert {epoch: state["trace"][epoch]["reason"] for epoch in reasons} == reasons


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
