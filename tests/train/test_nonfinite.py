"""A gradient that is not finite: named, or left out on all ranks before any residual has seen it.

The two real processes' part is in test_worlds.py.
"""

from __future__ import annotations

import pytest
import torch
from tiny_run import UNIFORM4_EF, built, play

from dgc_repro.errors import UserError
from dgc_repro.nests import tensors_of
from dgc_repro.train.run import Run

POISONED = "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}"


def poisoned(*overrides: str) -> Run:
    return built("~model", POISONED, *UNIFORM4_EF, *overrides)


def test_raise_names_rank_step_and_tensor_and_nobody_else() -> None:
    run = poisoned()
    with pytest.raises(UserError) as caught:
        play(run)
    text = str(caught.value)
    assert text.startswith("train.on_nonfinite: the gradient is not finite at step 3 ")
    assert "(rank 1: head.weight)" in text
    assert "\n" not in text


@pytest.mark.parametrize("first", ["cuda", "cpu"])
def test_skip_leaves_the_step_out_and_touches_no_residual(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first``: where payloads are sent before the signals are read."""
    monkeypatch.setattr("dgc_repro.exchange.junction.SEND_FIRST", {first})
    run = poisoned("train.on_nonfinite=skip")
    play(run, until=2)
    before = [
        [t.clone() for t in tensors_of(run.exchange.states(i))] for i in range(run.world.local)
    ]
    weights = [p.detach().clone() for p in run.module.parameters()]
    momentum = [t.clone() for t in tensors_of(run.optimizer.state_dict())]
    assert any(bool(t.any()) for t in before[1])

    play(run, until=3)

    assert run.progress.step == 3
    assert run.progress.tally.skipped_steps == 1
    for state, old in zip(map(run.exchange.states, range(run.world.local)), before, strict=True):
        for now, then in zip(tensors_of(state), old, strict=True):
            assert torch.equal(now, then)
    for now, then in zip(run.module.parameters(), weights, strict=True):
        assert torch.equal(now, then)
    for now, then in zip(tensors_of(run.optimizer.state_dict()), momentum, strict=True):
        assert torch.equal(now, then)
