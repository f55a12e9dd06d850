"""The states of a model's exchange: whose storage they are, what they fit, how they lie."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from laws import Setting, copied, play, same, simulation
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.gradients import in_memory_order
from dgc_repro.payload.requests import Exchange, Mean, Outcome

EF = Setting("ef", ErrorFeedback(Uniform(3)))
X = {"x": torch.tensor([1.0, 0.3, -0.2])}


def test_what_was_saved_stays_as_it_was_when_training_goes_on_from_it() -> None:
    first, second = simulation(EF, 1, X), simulation(EF, 1, X)
    play(first, EF, [copied(X)])
    saved = copied(first.state_dict())
    kept = copied(saved)
    second.load_state_dict(saved)
    for _ in range(3):
        play(second, EF, [copied(X)])
    assert same(saved, kept)
    assert not same(second.state_dict(), kept)


@pytest.mark.parametrize(
    "other", [Dense(), Uniform(3), PerLayer(ErrorFeedback(Uniform(3)), ())], ids=str
)
def test_states_of_another_nest_are_refused(other: ErrorFeedback) -> None:
    saved = simulation(Setting("other", other), 1, X).state_dict()
    with pytest.raises(ValueError, match="of another model, compressor or wrap list"):
        simulation(EF, 1, X).load_state_dict(saved)
    with pytest.raises(ValueError, match="of another model, compressor or wrap list"):
        simulation(EF, 1, {"x": torch.ones(4)}).load_state_dict(simulation(EF, 1, X).state_dict())


@dataclass(frozen=True)
class Counting:
    """A compressor whose state is a number."""

    def init(self, tensor: Tensor) -> State:
        return {"steps": 0}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        mean = yield Mean(tensor)
        outcome = Outcome(mean, None, {"steps": state["steps"] + 1})  # type: ignore[arg-type]
        return outcome


def test_a_number_in_a_state_may_have_changed_when_it_is_loaded() -> None:
    setting = Setting("counting", Counting())
    first, second = simulation(setting, 1, X), simulation(setting, 1, X)
    play(first, setting, [X])
    second.load_state_dict(first.state_dict())
    assert second.states[0] == {"x": {"steps": 1}}


def test_a_channels_last_weight_is_handed_over_as_it_lies_in_memory() -> None:
    weight = torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last)
    flat = in_memory_order(weight)
    assert flat.shape == (4, 5, 2, 3)
    assert flat.is_contiguous()
    assert flat.data_ptr() == weight.data_ptr()
    assert in_memory_order(flat) is flat


def test_a_step_that_is_discarded_is_counted_and_forgotten() -> None:
    exchange = simulation(EF, 2, X)
    play(exchange, EF, [X, X])
    states = copied(exchange.states)
    exchange.open(0, X, EF.plan)
    exchange.discard()
    exchange.discard()
    assert exchange.step == 3
    assert same(exchange.states, states)
