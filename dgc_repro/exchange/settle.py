"""The end of a step, the same for the trainer and for `attach`: agree, then exchange or discard.

Gradients are compressed before the ranks have agreed on the step (docs/architecture.md, one training
step). `settle` shares the signals of the step in one small allreduce. If the gradient of any worker is
not finite, nothing is sent and no residual has changed. Otherwise the means stand in ``param.grad`` and
the new states are current.

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
from dgc_repro.exchange.signals import share
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan

CHANGED = 2.0**-20
"""What a rank adds to the first signal where it lacks other parameters than in its last step. The whole
part of the sum counts ranks with a gradient that is not finite, the fraction those that have changed:
one number for both, so that an ordinary step sends no more bytes for it."""


class Finishes(Protocol):
    """What is needed of a junction (exchange/ddp.py)."""

    @property
    def missing(self) -> frozenset[str]: ...

    def finish(self, absent: Collection[str]) -> None: ...


def settle(
    link: Link,
    exchange: GradientExchange,
    junction: Finishes,
    numbers: Sequence[float],
    plan: Plan,
    *,
    finite: bool,
) -> tuple[bool, list[float], list[float]]:
    """Agree on a step whose gradients have been opened, and finish or discard it.

    ``link``: between all workers. ``plan``: of this step. ``finite``: whether all gradients here are.
    Returns whether the step has happened, the sums of ``numbers`` over processes, and what the plan
    measures (`GradientExchange.energies`), averaged over workers. Raises UserError on all ranks.

    On a GPU what kernels have found joins the signals on the device. The process waits for it here, and reads
    the sizes of its own payloads with it. (`GradientExchange.named` says afterwards which tensor was not
    finite.)
    """
    missing = junction.missing
    flag = (not finite) + CHANGED * (missing != exchange.missing)
    exchange.missing = missing
    here = torch.tensor([flag, *numbers], dtype=torch.float64)
    signal = here.to(link.wire.device, non_blocking=True)
    if plan.measures:
        signal = torch.cat([signal, _energies(link, exchange, plan)])
    if (doubt := exchange.doubt()) is not None:
        signal[0] += doubt
    flags, *sums = share(link, signal, unread=exchange.unread())
    sums, energies = sums[: len(numbers)], sums[len(numbers) :]
    num_bad, changed = divmod(flags, 1)
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
    junction.finish(exchange.absent)
    exchange.commit()
    return True, sums, energies


def _energies(link: Link, exchange: GradientExchange, plan: Plan) -> Tensor:
    """What the plan measures, summed over the workers hosted here."""
    return exchange.energies(plan) * link.wire.local_workers
