"""Exact distributed evaluation: eval mode, every sample once, sums over workers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.dataset.batches import eval_shard, normalize
from dgc_repro.dataset.images import Images
from dgc_repro.exchange.packing import places, read_parts, write_parts
from dgc_repro.exchange.signals import share
from dgc_repro.exchange.wire import Link
from dgc_repro.train.run import Run


@dataclass(frozen=True)
class Score:
    """Mean cross-entropy in nats and top-1 accuracy in percent over ``count`` images."""

    loss: float
    accuracy_percent: float
    count: int


@torch.no_grad()
def evaluate(run: Run, images: Images) -> Score:
    """Score the unwrapped module; workers hosted here take their own shards."""
    wire = run.link.wire
    shards = [eval_shard(len(images), wire.world_size, rank) for rank in run.workers.ranks]
    mine = torch.cat(shards).to(run.device)
    was_training = run.module.training
    run.module.eval()
    loss = torch.zeros((), dtype=torch.float64, device=run.device)
    correct = torch.zeros((), dtype=torch.float64, device=run.device)
    for indices in mine.split(run.settings.evaluation_batch_size):
        batch = normalize(images.images[indices], run.splits.mean, run.splits.std)
        if run.settings.channels_last:
            batch = batch.to(memory_format=torch.channels_last)
        with torch.autocast(
            run.device.type, torch.bfloat16, enabled=run.settings.precision == "bf16"
        ):
            logits = run.module(batch)
        labels = images.labels[indices]
        loss += F.cross_entropy(logits.float(), labels, reduction="sum").double()
        correct += (logits.argmax(1) == labels).sum()
    run.module.train(was_training)
    sums = torch.stack(
        [loss, correct, torch.tensor(float(len(mine)), dtype=torch.float64, device=run.device)]
    )
    loss_sum, num_correct, count = share(run.link, sums, "evaluation")
    assert count == len(images), f"evaluated {count} of {len(images)} samples"
    return Score(loss_sum / count, 100.0 * num_correct / count, int(count))


def broadcast_buffers(link: Link, module: nn.Module) -> None:
    """Rank 0's buffers (batch-norm statistics) to all ranks, in one collective. DDP's own broadcast in
    every forward is switched off: it moves more than strong compression does, and in no ledger."""
    buffers: list[Tensor] = [buffer for buffer in module.buffers() if buffer.numel()]
    if not buffers:
        return
    layout, size = places([(buffer.numel(), buffer.dtype) for buffer in buffers])
    flat = torch.zeros(size, dtype=torch.uint8, device=link.wire.device)
    write_parts(flat, [buffer.reshape(-1) for buffer in buffers], layout)
    link.broadcast_(flat, "buffer", "").wait()
    for buffer, part in zip(buffers, read_parts(flat, layout), strict=True):
        buffer.copy_(part.view(buffer.shape))
