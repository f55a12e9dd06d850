"""Exact distributed evaluation: eval mode, every answer once, sums over workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.dataset.text import IGNORED
from dgc_repro.exchange.world import BROADCAST, World
from dgc_repro.train.run import Run
from dgc_repro.train.step import autocast
from dgc_repro.train.task import TOP, Carried, Part

FILL = 8  # bytes: buffers end at a multiple


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy in nats and top-1 accuracy in percent over ``count`` answers; top-5 where the
    task counts it."""

    mean_loss: float
    accuracy_percent: float
    count: int
    top5_percent: float | None = None


@torch.no_grad()
def evaluate(run: Run, part: Part) -> Score:
    """Score the unwrapped module; workers hosted here take their own shares."""
    was_training = run.module.training
    run.module.eval()
    counts_top5 = run.task.counts_top5
    # loss, correct answers, answers; where it is counted, answers among the five likeliest
    sums = torch.zeros(4 if counts_top5 else 3, dtype=torch.float64, device=run.device)
    carried: Carried = ()
    for inputs, targets in run.task.evaluation_batches(part, run.workers.ranks, run.world.size):
        with autocast(run):
            logits, carried = run.task.answer(run.module, inputs, carried)
        sums[0] += F.cross_entropy(logits.float(), targets, reduction="sum").double()
        sums[1] += (logits.argmax(1) == targets).sum()
        sums[2] += (targets != IGNORED).sum()
        if counts_top5:
            sums[3] += (logits.topk(TOP, dim=1).indices == targets.unsqueeze(1)).sum()
    run.module.train(was_training)
    loss_sum, num_correct, count, *top5 = run.world.share(sums, "evaluation")
    asked = run.task.evaluation_size(part)
    assert count == asked, f"evaluated {count} of {asked} answers"
    among_five = 100.0 * top5[0] / count if top5 else None
    return Score(loss_sum / count, 100.0 * num_correct / count, int(count), among_five)


def broadcast_buffers(world: World, module: nn.Module) -> None:
    """Rank 0's buffers (batch-norm statistics) to all ranks, in one collective. DDP's own broadcast in
    every forward is switched off: it moves more than strong compression does, and in no ledger."""
    buffers: list[Tensor] = [buffer for buffer in module.buffers() if buffer.numel()]
    if not buffers:
        return
    layout, size = places([(buffer.numel(), buffer.dtype) for buffer in buffers])
    flat = torch.zeros(size, dtype=torch.uint8, device=world.device)
    write_parts(flat, [buffer.reshape(-1) for buffer in buffers], layout)
    world.reduce_(BROADCAST, flat, "buffer")
    for buffer, part in zip(buffers, read_parts(flat, layout), strict=True):
        buffer.copy_(part.view(buffer.shape))


def places(
    parts: Sequence[tuple[int, torch.dtype]],
) -> tuple[list[tuple[int, int, torch.dtype]], int]:
    """(start byte, end byte, dtype) of each part in a flat u8 buffer, and the buffer's size."""
    layout = []
    end = 0
    for numel, dtype in parts:
        start = -(-end // dtype.itemsize) * dtype.itemsize
        end = start + numel * dtype.itemsize
        layout.append((start, end, dtype))
    return layout, -(-end // FILL) * FILL


def write_parts(
    flat: Tensor, parts: Sequence[Tensor], layout: Sequence[tuple[int, int, torch.dtype]]
) -> None:
    """Copy the parts into a flat u8 buffer."""
    for part, (start, end, dtype) in zip(parts, layout, strict=True):
        if end > start:
            _typed(flat[start:end], dtype).copy_(part)


def read_parts(flat: Tensor, layout: Sequence[tuple[int, int, torch.dtype]]) -> list[Tensor]:
    """Views of the parts in a flat u8 buffer."""
    return [_typed(flat[start:end], dtype) for start, end, dtype in layout]


def _typed(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes read as another type. (A view that changes nothing costs as much as one that does.)"""
    return part if dtype == torch.uint8 else part.view(dtype)
