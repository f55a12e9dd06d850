"""One worker's exchange without the others: what it computes, and what it would hand over.

The exchange is the real one, tensor by tensor, with its packing. The wire answers at once: what is
gathered from the other workers are payloads of the same gradients, each rotated by its own share of the
tensor, so that N payloads are decompressed that touch different places (those of real workers overlap
somewhat: their gradients are correlated); a sum is N times its own. Where workers do not send each other
the same (shards, trees), all N workers are simulated in this process, one after another, and a worker's
share of the time is taken.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.exchange.clock import WARMUP_STEPS, Clock
from dgc_repro.exchange.gradients import GradientExchange, in_memory_order
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import SUM, Link, Pending, Sizes, Wire
from dgc_repro.policy.interface import Plan

DENSE = Plan(0)
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""DDP's: a bucket is closed by the tensor that reaches the limit."""


class AloneWire(SimulatedWire):
    """Worker ``rank`` of ``world_size``, the only one here; the others' payloads are those of `others`, and
    where there are none this worker's own."""

    def __init__(self, world_size: int, device: torch.device, rank: int = 0) -> None:
        super().__init__(world_size, device)
        self.local_workers = 1
        self.rank = rank
        self.sent: dict[tuple[str, int], Tensor] = {}  # of this step, by slot and number
        self.others: list[dict[tuple[str, int], Tensor]] = []  # what they sent, rank 0 left out
        self._keep = False
        self._numbers: Counter[str] = Counter()

    def begin_step(self, *, keep: bool = False) -> None:
        """``keep``: copies of what is handed over to gathers, in ``sent``."""
        self.sent.clear()
        self._numbers.clear()
        self._keep = keep

    @property
    def gathered(self) -> bool:
        """Whether anything was, in this step."""
        return bool(self._numbers)

    def combine_(self, how: str, flat: Tensor) -> Pending:
        if how == SUM:
            flat.mul_(self.world_size)
        return Pending()

    def collect(
        self, flats: Sequence[Tensor], slot: str, sizes: Sequence[Sizes] | None = None
    ) -> tuple[list[list[Tensor]], Pending]:
        if sizes is not None:
            raise NotImplementedError("what comes from others is not what this worker sends")
        (own,) = flats
        call = (slot, self._numbers[slot])
        self._numbers[slot] += 1
        if self._keep:
            self.sent[call] = own.clone()
        if not self.others:
            return [[own] * self.world_size], Pending()
        others = [as_long_as(own, other.get(call, own)) for other in self.others]
        return [[own, *others]], Pending()


def as_long_as(own: Tensor, other: Tensor) -> Tensor:
    """Payloads of unequal lengths travel filled up to the longest, which may change from step to step."""
    if other.numel() == own.numel():
        return other
    filled = own.new_zeros(own.numel())
    kept = min(own.numel(), other.numel())
    filled[:kept] = other[:kept]
    return filled


@dataclass(frozen=True)
class Exchanged:
    """What a worker does for some tensors in a step. ``compress``, ``decompress``: median seconds;
    ``first``: the collectives that begin when it has compressed, ``later``: what is asked after their
    answers, each as collective -> (calls, payload bytes)."""

    compress: float
    decompress: float
    first: dict[str, tuple[int, int]]
    later: dict[str, tuple[int, int]]


def time_exchange(
    compressor: Compressor,
    gradients: Mapping[str, Tensor],
    workers: int,
    *,
    plan: Plan = DENSE,
    parts: Sequence[Sequence[str]] | None = None,
    unit: str = "layer",
    repeats: int = 5,
    seed: int = 0,
    before: Callable[[], None] | None = None,
) -> list[Exchanged]:
    """Time the exchange of one worker of ``workers``. ``plan``: the rungs, where there is a ladder;
    ``parts``: names exchanged together, one part after another, as DDP's buckets are (None: all at once);
    ``gradients``: f32, by parameter name; they are not changed; ``before``: is
    done before each step, such as waiting for live neighbours."""
    gradients = {name: in_memory_order(gradient) for name, gradient in gradients.items()}
    device = next(iter(gradients.values())).device
    clock = Clock(device)
    calls: list[tuple[str, int]] = []

    def note(collective: str, payload_bytes: int) -> float:
        calls.append((collective, payload_bytes))
        return 0.0

    differ = any(isinstance(part, Sharded | GTopK) for part in nested(compressor))
    alone = AloneWire(workers, device)
    wire: Wire = SimulatedWire(workers, device) if differ else alone
    link = Link(wire, Ledger(), clock, cost=note)
    exchange = GradientExchange(compressor, gradients, link, seed=seed, unit=unit)
    groups = [list(gradients)] if parts is None else [list(part) for part in parts]
    here = wire.local_workers
    # Given up to the exchange, which may write means into the first worker's.
    handed_over = [{name: g.clone() for name, g in gradients.items()} for _ in range(min(here, 2))]
    measured: list[list[Exchanged]] = []
    for step in range(WARMUP_STEPS + repeats):
        for tensors in handed_over:
            for name, gradient in gradients.items():
                tensors[name].copy_(gradient)
        if step == 1 and alone.gathered:
            alone.others = [
                _sent_by(rank, compressor, gradients, workers, plan, groups, unit, seed)
                for rank in range(1, workers)
            ]
        alone.begin_step()
        if before is not None:
            before()
        found = []
        for number, names in enumerate(groups):
            calls.clear()
            for worker in range(here):
                tensors = handed_over[min(worker, 1)]
                if worker > 1:
                    for name in names:
                        tensors[name].copy_(gradients[name])
                part = {name: tensors[name] for name in names}
                exchange.open(worker, part, plan, part=number)
            exchange.send(number)
            first = _totals(calls)
            calls.clear()
            exchange.finish(number)
            clock.end_step(0.0)
            spans = clock.report()
            found.append(
                Exchanged(
                    spans.get("time/compress_ms", math.nan) / 1e3 / here,
                    spans.get("time/decompress_ms", math.nan) / 1e3 / here,
                    first,
                    _totals(calls),
                )
            )
        exchange.commit()
        if step >= WARMUP_STEPS:
            measured.append(found)
    return [_median(steps) for steps in zip(*measured, strict=True)]


def _sent_by(
    rank: int,
    compressor: Compressor,
    gradients: Mapping[str, Tensor],
    workers: int,
    plan: Plan,
    groups: Sequence[Sequence[str]],
    unit: str,
    seed: int,
) -> dict[tuple[str, int], Tensor]:
    """What another worker hands over to gathers: its gradients are rotated by rank/workers of each
    tensor."""
    device = next(iter(gradients.values())).device
    wire = AloneWire(workers, device, rank)
    exchange = GradientExchange(
        compressor, gradients, Link(wire, Ledger(), Clock(device)), seed=seed, unit=unit
    )
    wire.begin_step(keep=True)
    for number, names in enumerate(groups):
        rotated = {
            n: gradients[n].reshape(-1).roll(rank * gradients[n].numel() // workers) for n in names
        }
        part = {n: flat.view(gradients[n].shape) for n, flat in rotated.items()}
        exchange.open(0, part, plan, part=number)
        exchange.send(number)
        exchange.finish(number)
    return dict(wire.sent)


def buckets(gradients: Mapping[str, Tensor]) -> list[list[str]]:
    """The names in each of DDP's buckets, in the order in which backward fills them."""
    found: list[list[str]] = []
    names: list[str] = []
    size = 0
    for name in reversed(list(gradients)):
        names.append(name)
        size += gradients[name].nbytes
        if size >= (BUCKET_BYTES if found else FIRST_BUCKET_BYTES):
            found.append(names)
            names, size = [], 0
    return [*found, names] if names else found


def _totals(calls: Sequence[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for collective, payload_bytes in calls:
        count, size = found.get(collective, (0, 0))
        found[collective] = (count + 1, size + payload_bytes)
    return found


def _median(steps: Sequence[Exchanged]) -> Exchanged:
    """Times are medians; payloads are the last step's (of thresholds they move a little)."""
    return Exchanged(
        statistics.median(step.compress for step in steps),
        statistics.median(step.decompress for step in steps),
        steps[-1].first,
        steps[-1].later,
    )
