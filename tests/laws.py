"""The workers that play each line of the settings table (dgc_repro/selfcheck/law_settings) for every law.

A line may excuse its method from a law, with the reason; test_laws.py prints and counts the excuses.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numeric import each_dense
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Apart, Compressor, Context, Step, Wrapper, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind
from dgc_repro.kernel.segments import Segments
from dgc_repro.nests import tensors_of
from dgc_repro.payload import BatchPayload, Halves, LowRank, Parted, Wholes
from dgc_repro.selfcheck.law_settings import SETTINGS
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.selfcheck.methods import play, simulation
from dgc_repro.selfcheck.values import tensors

WORLDS = (2, 3, 5)
LAWS = ("agreement", "averaging", "conservation", "bytes", "undo", "resume", "contraction")


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


State = dict[str, Tensor]
"""Of one tensor, by label."""
Parts = tuple[tuple[int, int], ...]  # of each part of a payload, elements and the bytes of one
Sent = tuple[Tensor, Parts, float]  # decoded, its parts, its floats


class Leaf(Compressor):
    """A compressor at the bottom of a nest, which notes what it sends at the moment it has been sent: an
    error feedback around `Dense` turns the very buffer that was sent into the residual."""

    def __init__(self, inner: Any, sent: dict[tuple[str, int], Sent]) -> None:
        self.inner, self.sent = inner, sent

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return bool(self.inner.exact)

    def setup(self, like: Batch, world: World) -> None:
        self.inner.setup(like, world)

    def states(self, worker: int) -> dict[str, Segments]:
        found: dict[str, Segments] = self.inner.states(worker)
        return found

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        # Copies: of what is sent whole, the mean would take the place.
        own_xs = [Batch(x.names, [tensor.clone() for tensor in x.tensors]) for x in xs]
        sent: Sequence[Any] = yield from self.inner.step(own_xs, out, world, context)
        for worker, own in enumerate(sent):
            told = told_by(own, out)
            for name, values in zip(out.names, each_dense(own, out), strict=True):
                self.sent[name, world.rank + worker] = (values, *told[name])
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        found: Tensor = self.inner.energies(batch, context)
        return found


def told_by(own: Any, batch: Batch) -> dict[str, tuple[Parts, float]]:
    """The parts of what was sent of each tensor of a batch, or its bytes; and its floats."""
    if isinstance(own, Apart):
        every: dict[str, tuple[Parts, float]] = {}
        for part, sent in own.each(batch):
            every |= told_by(sent, part)
        return every
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
            dtype = own.values.dtype if isinstance(own, Halves) else own.batch.tensors[0].dtype
            kinds_of_each = [((n, dtype),) for n in batch.sizes]
        else:
            kinds_of_each = [[(p.numel(), p.dtype) for p in parts] for parts in own.parts]
        floats_of_each = [sum(n * t.itemsize for n, t in one) / 4 for one in kinds_of_each]
    parts_of_each = [tuple((n, t.itemsize) for n, t in one) for one in kinds_of_each]
    return dict(zip(batch.names, zip(parts_of_each, floats_of_each, strict=True), strict=True))


def with_leaves(compressor: Any, sent: dict[tuple[str, int], Sent]) -> Any:
    """A nest that is set up, whose leaves note what they send."""
    if isinstance(compressor, Ladder):
        if all(isinstance(rung, Sparsifier) for rung in compressor.rungs[1:]):
            return Leaf(compressor, sent)  # it sends what its rungs have chosen itself
        vars(compressor)["rungs"] = tuple(with_leaves(rung, sent) for rung in compressor.rungs)
        return compressor
    if isinstance(compressor, Wrapper):
        vars(compressor)["inner"] = with_leaves(compressor.inner, sent)
        return compressor
    return Leaf(compressor, sent)


class Watched:
    """The exchange of a setting, which notes what it is given and what its leaves send."""

    def __init__(self, setting: Setting, workers: int, like: Mapping[str, Tensor]) -> None:
        self.sent: dict[tuple[str, int], Sent] = {}
        self.seen: dict[str, list[Seen]] = {}
        self.exchange, self._setting = simulation(setting, workers, like), setting
        for group in self.exchange.groups:
            group.method = with_leaves(group.method, self.sent)

    def play(self, gradients: Sequence[Mapping[str, Tensor]]) -> None:
        """One step."""
        workers = range(self.exchange.world.local)
        before = [states_by_tensor(self.exchange, worker) for worker in workers]
        means = play(self.exchange, self._setting, [dict(own) for own in gradients])
        after = [states_by_tensor(self.exchange, worker) for worker in workers]
        for name, mean in means.items():
            for worker in workers:
                own, parts, floats = self.sent.pop((name, worker))
                given = gradients[worker][name]
                states = before[worker].get(name, {}), after[worker].get(name, {})
                self.seen.setdefault(name, []).append(
                    Seen(worker, given, states[0], mean, own, parts, floats, states[1])
                )


def states_by_tensor(exchange: Exchange, worker: int) -> dict[str, State]:
    """Copies of the states of each tensor, by label."""
    found: dict[str, State] = {}
    for label, held in exchange.states(worker).items():
        for name, state in held.items():
            found.setdefault(name, {})[label] = state.clone()
    return found


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
    workers = range(len(gradients[0]))
    return means, [states_by_tensor(exchange, worker).get("x", {}) for worker in workers]


def leaves(kind: type) -> list[Any]:
    """The methods of this kind at the bottom of the table's nests; of those that differ in numbers, one."""
    found: dict[Any, Any] = {}
    for one in (part for setting in SETTINGS for part in nested(setting.compressor)):
        if isinstance(one, kind) and not isinstance(one, Wrapper | Ladder | Sharded):
            words = [v for v in vars(one).values() if isinstance(v, bool | str | None)]
            found[type(one), *words] = one
    return list(found.values())


def num_steps(workers: int) -> int:
    """Steps of a transcript: a residual shows in the second."""
    return 1 if workers == 5 else 2


@functools.cache
def transcript(setting_index: int, workers: int) -> tuple[dict[str, list[Seen]], Ledger]:
    """Two steps of a setting over all kinds of tensors (five workers: one): what was seen, and the
    bytes."""
    setting = SETTINGS[setting_index]
    watched = Watched(setting, workers, tensors(0, 0))
    before = torch.get_rng_state(), random.getstate()
    for step in range(num_steps(workers)):
        watched.play([tensors(worker, step) for worker in range(workers)])
    assert torch.equal(before[0], torch.get_rng_state()), "a global random number was drawn"
    assert before[1] == random.getstate()
    return watched.seen, watched.exchange.world.ledger


def residual(state: State, like: Tensor) -> Tensor:
    """What a state still owes: the sum of all residuals in the nest, f64."""
    total = torch.zeros(like.shape, dtype=torch.float64)
    for label, value in state.items():
        if label.rpartition(".")[2] == "residual":
            total += value.double()
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
