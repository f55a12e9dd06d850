"""What a run did, in a form that processes can send: losses, records, and digests of its state."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_run import play, without_times
from torch import Tensor

from dgc_repro.errors import UserError
from dgc_repro.launch.build import build_run
from dgc_repro.nests import tensors_of
from dgc_repro.train.run import Run

EVALUATED = ("validation", "test", "fit")
"""Parts of the data that are evaluated; the last record alone has ``fit/``."""


def digest(tensors: list[Tensor]) -> str:
    """One text for the bits of all of them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def told_by(run: Run, worker: int = 0, folder: Path | None = None) -> dict[str, Any]:
    """Train to the end; losses, records and digests of one worker hosted here."""
    try:
        story = play(run, folder=folder)
    except UserError as error:
        return {"error": str(error)}
    return {
        "losses": story.losses,
        "records": [without_times(record) for record in story.records],
        "parameters": digest(list(run.module.parameters())),
        "buffers": digest(list(run.module.buffers())),
        "state": digest(tensors_of(run.exchange.states(worker))),
    }


def told_here(config: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """A job of a rank: the whole run, as torchrun would start it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(dist.get_rank()))
        return told_by(build_run(config, torch.device("cpu")), 0, folder)


def shared_part(told: dict[str, Any], *, floats: bool = True) -> dict[str, Any]:
    """What every rank must tell alike, and every world. Evaluation batches are cut otherwise where
    workers are simulated; comparing replicas needs replicas; buffers that one process holds need no
    broadcast; of a ragged payload each worker counts its own ``floats``."""
    other = {f"{part}/{name}" for part in EVALUATED for name in ("loss", "perplexity")}
    other |= {"comm/check_bytes", "comm/total_wire_bytes", "comm/buffer_bytes"}
    if not floats:
        other.add("comm/floats")
    records = [{k: v for k, v in record.items() if k not in other} for record in told["records"]]
    # As text: of an epoch whose first round goes on, the loss is NaN.
    return {"losses": repr(told["losses"]), "parameters": told["parameters"], "records": records}
