"""Made-up records for the tests of papers: formulas, clearly no measurement of anything."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from dgc_repro.paper.page import Page, markdown

GOLDEN = Path(__file__).parent / "golden"
EPOCHS = 9
DENSE_BYTES = 4_000_000.0

# row: (final test accuracy, share of dense bytes, seconds an epoch, early loss, late weight change)
ROWS = {
    "none": (92.0, 1.0, 10.0, 1.0, 4.0),
    "static8": (86.0, 0.25, 30.0, 1.2, 1.0),
    "dynamic": (91.0, 0.35, 20.0, 1.6, 4.0),
    "static8_ef": (91.8, 0.25, 12.0, 1.05, 4.0),
    "dynamic_ef": (91.6, 0.35, 13.0, 1.3, 4.0),
}
RUNGS = ((5, "bits=4"), (4, "bits=6"), (3, "bits=8"), (2, "bits=12"), (1, "bits=16"), (0, "dense"))


def require_golden(page: Page, name: str, folder: Path) -> None:
    """Require that headings, tables and first sentences of a page of made-up runs are those in golden/, and
    that its figures can be drawn. The message has the command that takes over a change that is meant.

    The published pages have the other words."""
    kept = [line for line in markdown(page).splitlines() if line.startswith(("#", "|", "!", "**"))]
    made, golden = folder / name, GOLDEN / name
    made.write_text("\n".join(kept) + "\n", encoding="utf-8", newline="\n")
    assert made.read_bytes() == golden.read_bytes(), f"if it is meant: cp {made} {golden}"
    for one in page.figures.values():
        assert one.draw().axes


def words(page: Page) -> dict[str, str]:
    """The verdict of each claim, by its id."""
    return {verdict.claim.id: verdict.word for verdict in page.verdicts}


def epoch_line(
    row: str, seed: int, epoch: int, epochs: int, numbers: tuple[float, ...]
) -> dict[str, Any]:
    """One epoch of a made-up run: smooth curves with a seed offset that is equal for all rows."""
    accuracy, share, seconds, early, change = numbers
    done = epoch / epochs
    wobble = 0.1 * seed + 0.02 * math.sin(7 * epoch + seed)
    test = 40 + (accuracy - 40) * done**0.4 + (wobble if epoch < epochs else 0.1 * seed)
    own = 1e-9 * seed * sum(map(ord, row))  # no two rows differ by the same in all seeds
    test += own
    rung, label = (0, "dense")
    if row.startswith("static8"):
        rung, label = 1, "bits=8"
    if row.startswith("dynamic"):
        rung, label = RUNGS[min(len(RUNGS) - 1, int(done * 5.9))]
    sent = DENSE_BYTES * share * epoch
    return {
        "kind": "epoch",
        "epoch": epoch,
        "step": 100 * epoch,
        "lr": 0.1,
        "train/loss": early * (1 - done) + 0.05 + 0.01 * seed + own * done,
        "train/accuracy_percent": test + 1.0,
        "validation/loss": 1.0,
        "validation/accuracy_percent": test - 0.5,
        "test/loss": 1.0,
        "test/accuracy_percent": test,
        "policy/rung": rung,
        "policy/label": label,
        "comm/floats": sent / 4,
        "comm/payload_bytes": sent,
        "comm/wire_bytes": sent,
        "comm/signal_bytes": 12.0 * epoch,
        "time/train_seconds": seconds * epoch * (1 + 0.01 * seed + own),
        "weights/change_norm": (change if done > 2 / 3 else 5.0) * (1 + 0.01 * seed + own),
    }


def write_run(
    runs: Path,
    row: str,
    seed: int,
    *,
    artifact: str = "table1",
    scale: str = "quick",
    epochs: int = EPOCHS,
    numbers: tuple[float, ...] | None = None,
    status: str = "finished",
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write one record as the trainer would and return its folder."""
    folder = runs / f"{row}-seed{seed}"
    folder.mkdir(parents=True)
    lines = [
        epoch_line(row, seed, epoch, epochs, numbers or ROWS[row]) for epoch in range(1, epochs + 1)
    ]
    metrics = [json.dumps({"kind": "step", "step": 1, "train/loss": 2.0}), *map(json.dumps, lines)]
    (folder / "metrics.jsonl").write_text("\n".join(metrics) + "\n")
    config: dict[str, Any] = {
        "experiment": {"paper": "dynamic", "artifact": artifact, "row": row},
        "scale": scale,
        "seed": seed,
        "launch": {"workers": 2, "kind": "local"},
        "dataset": {"_target_": "dgc_repro.dataset.cifar10.Cifar10", "root": f"/somewhere/{seed}"},
        "model": {"_target_": "dgc_repro.model.resnet.ResNet18", "width": 8, "stem": "cifar"},
        "compressor": {"_target_": "dgc_repro.compressor.uniform.Uniform", "bits": 8},
        "wrap": ["error_feedback"] if row.endswith("_ef") else [],
        "train": {"epochs": epochs, "batch_size": 32},
        **(settings or {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {
        "hardware": "synthetic CPU, 2 cores",
        "torch": "0.0",
        "backend": "gloo",
        "world_size": 2,
        "threads_per_worker": 1,
        "data": "synthetic",
        "commit": "0123456789abcdef",
        "dirty": False,
        "started": "2026-01-01T00:00:00",
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    summary = {"status": status, "results_version": 1, "steps": 100 * epochs, "epochs": epochs}
    (folder / "summary.json").write_text(json.dumps(summary))
    trace = ["epoch,validation_accuracy_percent,rung,reason,label,next_label"]
    trace += [
        f"{line['epoch']},{line['validation/accuracy_percent']:.2f},{line['policy/rung']},"
        f"threshold,{line['policy/label']},{following['policy/label']}"
        for line, following in zip(lines, [*lines[1:], lines[-1]], strict=True)
    ]
    (folder / "policy.csv").write_text("\n".join(trace) + "\n")
    (folder / "checkpoint.pt").write_bytes(b"not published")
    return folder
