"""The workers that play each line of the settings table (dgc_repro/selfcheck/law_settings) for every law.

A line may excuse its method from a law, with the reason; test_laws.py prints and counts the excuses.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numeric import each_dense
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import (
    ByBatch,
    Compressor,
    Context,
    Measured,
    State,
    energies_of,
    exchange_all,
    wrong_shape,
)
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.packing import kinds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind
from dgc_repro.nests import tensors_of
from dgc_repro.payload import BatchPayload, Halves, LowRank, Parted, Wholes
from dgc_repro.payload.requests import Exchange, Outcome
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.selfcheck.methods import copied, play, simulation
from dgc_repro.selfcheck.values import tensors

WORLDS = (2, 3, 5)
LAWS = ("agreement", "averaging", "conservation", "bytes", "purity", "resume", "contraction")
CPU = torch.device("cpu")


@dataclass
class Seen:
    """What one worker's exchange of one tensor was given and how it ended, copied."""

    worker: int
    tensor: Tensor
    before: State
    mean: Tensor
    own: Tensor
    own_parts: Parts
    own_floats: float
    after: State

    @property
    def own_bytes(self) -> int:
        return sum(count * size for count, size in self.own_parts)


Parts = tuple[tuple[int, int], ...]  # of each part of a payload, elements and the bytes of one
Sent = tuple[Tensor, Parts, float]  # decoded, its parts, its floats


@dataclass
class Leaf(Measured):
    """A compressor at the bottom of a nest, or one that may exempt a tensor, which notes what it
    sends at the moment it has been sent: an error feedback around `Dense` turns the very buffer
    that was sent into the residual. The innermost note stands."""

    inner: Any
    sent: dict[tuple[str, int], Sent]

    def init(self, tensor: Tensor) -> State:
        state: State = self.inner.init(tensor)
        return state

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        outcome: Outcome = yield from exchange_all(self.inner, batch, states, context)
        told = told_by(outcome.own, batch)
        for name, values in zip(batch.names, each_dense(outcome.own, batch.sizes), strict=True):
            self.sent.setdefault((name, context.rank), (values, *told[name]))
        return outcome

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return energies_of(self.inner, batch, context)


def told_by(own: Any, batch: Batch) -> dict[str, tuple[Parts, float]]:
    """The parts of what was sent of each tensor of a batch, or its bytes; and its floats."""
    if isinstance(own, Parted):
        found: dict[str, tuple[Parts, float]] = {}
        for i, (payload, view) in enumerate(zip(own.payloads, own.cut(batch), strict=True)):
            of = view if isinstance(view, Batch) else Batch(batch.names[i : i + 1], [view])
            for name, (parts, floats) in told_by(payload, of).items():
                before, so_far = found.get(name, ((), 0.0))
                found[name] = (before + parts, so_far + floats)
        return found
    kinds_of_each: Sequence[Sequence[Kind]]
    if isinstance(own, BatchPayload):
        kinds_of_each, floats_of_each = own.layout.kinds, own.layout.floats.tolist()
    else:
        if isinstance(own, LowRank):
            each = zip(own.matrices.p_sizes, own.matrices.q_sizes, strict=True)
            kinds_of_each = [((p, torch.float32), (q, torch.float32)) for p, q in each]
        elif isinstance(own, Halves | Wholes):
            dtype = own.parts[0].dtype
            kinds_of_each = [((n, dtype),) for n in batch.sizes]
        else:
            kinds_of_each = [kinds(own)]
        floats_of_each = [sum(n * t.itemsize for n, t in one) / 4 for one in kinds_of_each]
    parts_of_each = [tuple((n, t.itemsize) for n, t in one) for one in kinds_of_each]
    return dict(zip(batch.names, zip(parts_of_each, floats_of_each, strict=True), strict=True))


def with_leaves(compressor: Compressor, sent: dict[tuple[str, int], Sent]) -> Compressor:
    """The same nest whose leaves note what they send."""
    match compressor:
        case Ladder() if all(isinstance(rung, Sparsifier) for rung in compressor.rungs[1:]):
            return Leaf(compressor, sent)  # it sends what its rungs have chosen itself
        case Ladder():
            return Ladder(tuple(with_leaves(rung, sent) for rung in compressor.rungs))
        case PerLayer():
            inside = dataclasses.replace(compressor, inner=with_leaves(compressor.inner, sent))
            return Leaf(inside, sent)
        case _ if hasattr(compressor, "inner"):
            inner = with_leaves(compressor.inner, sent)
            wrapper: Any = compressor
            return dataclasses.replace(wrapper, inner=inner)
    return Leaf(compressor, sent)


class Watched(ByBatch):
    """A compressor that notes what the nest inside does. It adds nothing to the state."""

    def __init__(self, nest: Compressor) -> None:
        self.sent: dict[tuple[str, int], Sent] = {}
        self.seen: dict[str, list[Seen]] = {}
        self.inner = with_leaves(nest, self.sent)

    def init(self, tensor: Tensor) -> State:
        return self.inner.init(tensor)

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        given, before = [tensor.clone() for tensor in batch.tensors], copied(states)
        outcome: Outcome = yield from exchange_all(self.inner, batch, states, context)
        for i, name in enumerate(batch.names):
            said = wrong_shape(outcome.mean[i], given[i].shape)
            assert not said, f"tensor {name}: {said}"
            own, parts, floats = self.sent.pop((name, context.rank))
            mean, after = outcome.mean[i].clone(), copied(outcome.state[i])
            seen = Seen(context.rank, given[i], before[i], mean, own, parts, floats, after)
            self.seen.setdefault(name, []).append(seen)
        return outcome


def stepped(compressor: Compressor, gradients: list[Tensor], steps: int = 1) -> Tensor:
    """The mean of the last of so many steps on the same gradients, one a simulated worker."""
    return played(compressor, [gradients] * steps)[0][-1]


def played(
    compressor: Compressor, gradients: list[list[Tensor]]
) -> tuple[list[Tensor], list[State]]:
    """The mean of each step of gradients[step][worker] of one tensor "x", and its states in the end."""
    setting = Setting("any", compressor)
    exchange = simulation(setting, len(gradients[0]), {"x": gradients[0][0]})
    means = [play(exchange, setting, [{"x": own} for own in step])["x"] for step in gradients]
    return means, [state["x"] for state in exchange.states]


def num_steps(workers: int) -> int:
    """Steps of a transcript: a residual shows in the second."""
    return 1 if workers == 5 else 2


@functools.cache
def transcript(setting_index: int, workers: int) -> tuple[dict[str, list[Seen]], Ledger]:
    """Two steps of a setting over all kinds of tensors (five workers: one): what was seen, and the
    bytes."""
    setting = SETTINGS[setting_index]
    watched = Watched(setting.compressor)
    exchange = simulation(setting, workers, tensors(0, 0), watched)
    before = torch.get_rng_state(), random.getstate()
    for step in range(num_steps(workers)):
        play(exchange, setting, [tensors(worker, step) for worker in range(workers)])
    assert torch.equal(before[0], torch.get_rng_state()), "a global random number was drawn"
    assert before[1] == random.getstate()
    return watched.seen, exchange.link.ledger


def residual(state: State, like: Tensor) -> Tensor:
    """What a state still owes: the sum of all residuals in the nest, f64."""
    total = torch.zeros(like.shape, dtype=torch.float64)
    if isinstance(state, Mapping):
        for key, value in state.items():
            total += value.double() if key == "residual" else residual(value, like)
    elif isinstance(state, list):
        for value in state:
            total += residual(value, like)
    return total


def leaf(compressor: Compressor, name: str, tensor: Tensor, rung: int) -> Compressor:
    """The compressor that meets this tensor at the bottom of the nest."""
    if isinstance(compressor, Ladder):
        return leaf(compressor.rungs[rung], name, tensor, rung)
    if isinstance(compressor, PerLayer) and compressor.exempt(tensor, name):
        return Dense()
    inner = getattr(compressor, "inner", None)
    return compressor if inner is None else leaf(inner, name, tensor, rung)


def same(first: Any, second: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    ours, theirs = tensors_of(first), tensors_of(second)
    return len(ours) == len(theirs) and all(map(same_bits, ours, theirs))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Equal as bits: NaN equals itself, 0 differs from -0."""
    return first.shape == second.shape and torch.equal(
        first.contiguous().view(-1).view(torch.uint8),
        second.contiguous().view(-1).view(torch.uint8),
    )
