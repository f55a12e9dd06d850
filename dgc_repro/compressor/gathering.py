"""How payloads travel that everybody gets: the bytes of all workers, by rank, and their average."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import BatchPayload

if TYPE_CHECKING:
    from dgc_repro.compressor.interface import Context
    from dgc_repro.exchange.world import Wait, World

Received = Generator["Wait", None, list[Any]]


def gathered(
    sent: Sequence[BatchPayload], world: World, context: Context, label: str = "payloads"
) -> Received:
    """The payloads of all workers, by rank, where all have one layout. ``sent``: of each worker here."""
    rows = [payload.row for payload in sent]
    wait = world.gather(rows, _slot(label, context), sent[0].num_floats)
    yield wait
    return [read(sent[0], row) for row in wait.rows]


def gathered_ragged(
    sent: Sequence[BatchPayload],
    world: World,
    context: Context,
    layouts: Sequence[BatchPayload] | None = None,
) -> Received:
    """The same where sizes differ: they travel first. ``layouts``: a payload laid out as each rank's, where
    ranks send of other tensors (shards)."""
    floats = sent[0].num_floats
    told = [
        torch.tensor(payload.lengths, dtype=torch.int64)
        .view(torch.uint8)
        .to(world.device, non_blocking=True)
        for payload in sent
    ]
    wait = world.gather(told, _slot("lengths", context))
    yield wait
    numbers = torch.cat(wait.rows).cpu().numpy().view(np.int64)  # on a GPU the host waits here
    lengths = numbers.reshape(len(wait.rows), -1)
    if layouts is None:
        every = sent[0].announced(lengths)
    else:
        every = [one.announced(own)[0] for one, own in zip(layouts, lengths, strict=True)]
    longest = max(one.layout.size for one in every)
    rows = []
    for worker, payload in enumerate(sent):
        row = payload.row
        if row.numel() < longest:
            padded = context.at(worker).scratch("padded", longest, torch.uint8, row.device)
            padded[: row.numel()] = row
            row = padded
        rows.append(row)
    wait = world.gather(rows, _slot("ragged", context), floats)
    yield wait
    return [read(one, row) for one, row in zip(every, wait.rows, strict=True)]


def average(payloads: Sequence[Any], out: Batch) -> None:
    """The average over workers, summed in rank order: the same bits on every rank."""
    first, *others = payloads
    first.add_sum_to_(others, out, 1.0 / len(payloads), accumulate=False)


def read(like: BatchPayload, row: Tensor) -> Any:
    """A payload, laid out as this one, at the beginning of a row of bytes."""
    return like.like(row[: like.layout.size])


def _slot(label: str, context: Context) -> Hashable:
    return (label, context.slot, context.path, context.name)
