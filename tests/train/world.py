"""Two real workers that make one run after another: ``torchrun world.py <jobs.json> <folder>``.

Jobs are named, resolved configs. Each rank writes ``<folder>/<rank>.json``: job -> what it told.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_run import play, without_times
from torch import Tensor

from dgc_repro.errors import UserError
from dgc_repro.exchange.gradients import tensors_of
from dgc_repro.launch.build import build_run
from dgc_repro.train.run import Run


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
        "state": digest(tensors_of(run.exchange.states[worker])),
    }


def main() -> None:
    jobs, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = {}
    for name, config in jobs.items():
        # With checkpoints, as a real run has them: their broadcasts of buffers are in the ledger.
        told[name] = told_by(build_run(config, torch.device("cpu")), 0, folder / "saved" / name)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
