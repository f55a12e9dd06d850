"""The end of a step, the same for the trainer and for `attach`: agree, then exchange or discard.

Gradients are compressed before the ranks have agreed on the step (docs/architecture.md, one training
step). `settle` shares the signals of the step in one small allreduce. If the gradient of any worker is
not finite, no residual has changed. Otherwise the means stand in ``param.grad`` and the new states are
current.

When payloads are sent. On a CPU they follow the signals, so that a step that is discarded sends nothing but
them. A GPU would stand idle from the moment when the host has read the signals until it has begun the next
kernel. So on a GPU the host begins the whole exchange before it reads the signals (`sends_first`), and a step
that is discarded has sent its payload, as where exchanges overlap backward. The ledger counts what was sent.

Parameters without a gradient. Where a parameter has one on some ranks only, the others count as zeros.
Where no rank has one, the parameter is *absent*: it travels as zeros, as it does with plain DDP, but its
mean is not written, its state does not change, and a policy's energies do not count it. The ranks agree
on the absent parameters with a bitmap, which travels only in steps in which some rank lacks other
parameters than in its last step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dgc_repro.errors import UserError
from dgc_repro.exchange.gradients import MODEL, GradientExchange
from dgc_repro.exchange.signals import share, sharing
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan

SEND_FIRST = frozenset({"cuda"})
"""Types of devices on which payloads are sent before the host reads the signals (`sends_first`)."""
CHANGED = 2.0**-20
"""What a rank adds to the first signal where it lacks other parameters than in its last step. The whole
part of the sum counts ranks with a gradient that is not finite, the fraction those that have changed:
one number for both, so that an ordinary step sends no more bytes for it."""


class Finishes(Protocol):
    """What is needed of a junction (exchange/ddp.py)."""

    @property
    def missing(self) -> frozenset[str]: ...

    def serve(self) -> None: ...

    def finish(self, absent: Collection[str]) -> None: ...


def settle(
    link: Link,
    exchange: GradientExchange,
    junction: Finishes,
    numbers: Sequence[float | Tensor],
    plan: Plan,
    *,
    finite: bool,
) -> tuple[bool, list[float], list[float]]:
    """Agree on a step whose gradients have been opened, and finish or discard it.

    ``link``: between all workers. ``numbers``: of this process; the tensors among them, f64[], are on the
    device. ``plan``: of this step. ``finite``: whether all gradients here are. Returns whether the step has
    happened, the sums of ``numbers`` over processes, and what the plan measures
    (`GradientExchange.energies`), averaged over workers. Raises UserError on all ranks.

    On a GPU what kernels have found joins the signals on the device. The process waits for it here, once,
    and reads the sizes of its own payloads with it. (`GradientExchange.named` says afterwards which tensor
    was not finite.)
    """
    missing = junction.missing
    flag = (not finite) + CHANGED * (missing != exchange.missing)
    exchange.missing = missing
    signal = _on_device([flag, *numbers], link.wire.device)
    if plan.measures:
        signal = torch.cat([signal, _energies(link, exchange, plan)])
    if (doubt := exchange.doubt()) is not None:
        signal[0] += doubt
    read = sharing(link, signal, unread=(unread := exchange.unread()))
    early = not unread and sends_first(exchange, plan, finite=finite)
    failed: Exception | None = None
    if early:
        try:
            junction.serve()
        except Exception as error:  # a compressor may fail on a NaN that has travelled
            failed = error
    flags, *sums = read()
    sums, energies = sums[: len(numbers)], sums[len(numbers) :]
    num_bad, changed = divmod(flags, 1)
    if failed is not None and not num_bad:
        raise failed
    if changed:
        names = exchange.names
        present = share(link, torch.tensor([name not in missing for name in names]))
        exchange.absent = frozenset(n for n, count in zip(names, present, strict=True) if not count)
        if energies:  # again, without those that are absent now
            energies = share(link, _energies(link, exchange, plan))
    energies = [energy / link.wire.world_size for energy in energies]
    if num_bad:
        exchange.discard()
        return False, sums, energies
    if exchange.absent and exchange.unit == MODEL:
        exchange.discard()
        raise UserError(
            f"exchange.unit: model joins all gradients into one vector, and {min(exchange.absent)} has "
            "received none on any rank; use exchange.unit=layer"
        )
    if not early:
        junction.serve()
    junction.finish(exchange.absent)
    exchange.commit()
    return True, sums, energies


def sends_first(exchange: GradientExchange, plan: Plan, *, finite: bool) -> bool:
    """Whether payloads are sent before the signals are read, on all ranks alike. A policy that chooses by the
    step's gradient must know first that it is finite. Simulated workers among whom one has none (``finite``)
    have nothing to send."""
    wire = exchange.link.wire
    is_sound = finite or wire.local_workers == 1
    return wire.device.type in SEND_FIRST and plan.rung is not None and is_sound


def _on_device(numbers: Sequence[float | Tensor], device: torch.device) -> Tensor:
    """A vector of numbers, of which the tensors are on the device already: f64[n]."""
    known = [number for number in numbers if not isinstance(number, Tensor)]
    here = torch.tensor(known, dtype=torch.float64).to(device, non_blocking=True)
    if len(known) == len(numbers):
        return here
    rest = iter(here.unbind())
    return torch.stack([n if isinstance(n, Tensor) else next(rest) for n in numbers])


def _energies(link: Link, exchange: GradientExchange, plan: Plan) -> Tensor:
    """What the plan measures, summed over the workers hosted here."""
    return exchange.energies(plan) * link.wire.local_workers
