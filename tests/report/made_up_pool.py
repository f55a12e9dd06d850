"""Made-up runs of GraVAC's pool: a world in which every printed number comes out, to be changed by a test."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synthetic import write_run

from dgc_repro.paper import gravac_accordion, gravac_quality
from dgc_repro.paper import gravac_training as printed

EPOCHS = 10
STEPS_AN_EPOCH = 50
WORKERS = 4
DATA = {"resnet101": "cifar10.Cifar10", "vgg16": "cifar100.Cifar100", "lstm": "ptb.Ptb"}
PARAMETERS = 1_000_000
GUESS = {"resnet101": 10.0, "vgg16": 5.0, "lstm": 9_000.0}
"""Final quality of a run that has failed."""


@dataclass(frozen=True)
class Made:
    """One run: ``final`` quality, met at the end of epoch ``plateau``; modelled ``seconds`` an epoch, by
    which its measured spans and communication go too;
    ``reduction`` of floats against dense; ``averaged``: sent by an allreduce, values alone."""

    final: float
    plateau: int = 5
    seconds: float = 1.0
    reduction: float = 1.0
    averaged: bool = False
    test_loss: float = 1.0


def world() -> dict[str, Made]:
    """Every row of Tables II and IV and of figure 2 as printed, by row. Dense ends at the target."""
    rows: dict[str, Made] = {}
    for model in printed.MODEL_IDS:
        target = printed.SETUP.printed(model, "target")
        rows[f"{model}.dense"] = Made(target, averaged=True)
        for row in gravac_quality.TABLE_2.rows:
            final, _, speedup = (
                gravac_quality.printed(model, row.id, part)
                for part in ("quality", "difference", "speedup")
            )
            factor = 10.0 if row.id.endswith("10") else 1000.0
            if math.isnan(final):
                rows[f"{model}.{row.id}"] = Made(GUESS[model], reduction=factor)
            else:
                rows[f"{model}.{row.id}"] = Made(final, seconds=1 / speedup, reduction=factor)
        for method, reduction in printed.REDUCTIONS[model].items():
            known = rows.get(f"{model}.{method}", Made(target))
            rows[f"{model}.{method}"] = replace(known, reduction=reduction)
        gravac = rows[f"{model}.{printed.GRAVAC}"]
        rows[f"{model}.{printed.NORM_ROWS[0]}"] = gravac
        rows[f"{model}.{printed.ACCORDION}"] = Made(
            target,
            seconds=gravac.seconds * gravac_accordion.printed(model, "time"),
            reduction=gravac.reduction / gravac_accordion.printed(model, "communication"),
            averaged=True,
        )
    return rows


def write_made(
    runs: Path, row: str, seed: int, made: Made, *, scale: str = "small", **changes: Any
) -> Path:
    """Write one record; ``changes`` go over every epoch's line."""
    model = row.partition(".")[0]
    settings: dict[str, Any] = {
        "experiment": {"paper": "gravac", "artifact": "training", "row": row},
        "scale": {"name": scale},
        "launch": {"workers": WORKERS, "kind": "simulated"},
        "dataset": {"_target_": f"dgc_repro.dataset.{DATA[model]}"},
        "model": {"_target_": f"dgc_repro.model.{model}"},
        "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},
        "schedule": {"_target_": "dgc_repro.train.schedule.Constant"},
        "goal": {"metric": printed.METRICS[model], "plateau": 0.01},
        "network": {"source": "assumed", "as_workers": 32},
        "train": {"epochs": EPOCHS, "batch_size": 32, "compute_ms": 16, "step_time": "modelled"},
    }
    folder = write_run(runs, row, seed, scale=scale, epochs=EPOCHS, settings=settings,
                       numbers=(50.0, 1.0, 1.0, 1.0, 1.0))  # fmt: skip
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, **of_epoch(model, line["epoch"], made), **changes} for line in lines
             if line["kind"] == "epoch"]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "policy.csv").unlink()
    summary = json.loads((folder / "summary.json").read_text()) | {"parameters": PARAMETERS}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def of_epoch(model: str, epoch: int, made: Made) -> dict[str, Any]:
    """Quality rises evenly up to its plateau; what is sent grows with the steps."""
    left = max(0, made.plateau - epoch)
    qualities = {
        "test/accuracy_percent": made.final * (1 - left / made.plateau),
        "test/top5_percent": made.final * (1 - left / made.plateau),
    }
    if model == "lstm":
        qualities = {"test/accuracy_percent": 20.0, "test/perplexity": made.final * 2**left}
    steps = epoch * STEPS_AN_EPOCH
    floats = steps * PARAMETERS / made.reduction
    payload = floats * (4 if made.averaged else 8)
    moved = 2 * (WORKERS - 1) / WORKERS if made.averaged else WORKERS - 1
    return {
        **qualities,
        "step": steps,
        "test/loss": made.test_loss,
        "comm/floats": floats,
        "comm/payload_bytes": payload,
        "comm/wire_bytes": payload * moved,
        "time/compute_ms": 40 * made.seconds,
        "time/compress_ms": 20 * made.seconds,
        "time/decompress_ms": 5 * made.seconds,
        "time/modelled_communicate_seconds": 0.25 * made.seconds * epoch,
        "time/modelled_seconds": made.seconds * epoch,
        "time/train_seconds": 10.0 * epoch,
    }


def write_world(
    runs: Path,
    rows: Mapping[str, Made] | None = None,
    seeds: int = 3,
    *,
    scale: str = "small",
) -> list[Path]:
    """Every row for each seed."""
    chosen = world() if rows is None else rows
    return [
        write_made(runs, row, seed, made, scale=scale)
        for row, made in chosen.items()
        for seed in range(seeds)
    ]
