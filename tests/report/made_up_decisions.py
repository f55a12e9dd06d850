"""Made-up runs of GraVAC's pool with decisions: formulas, clearly no measurement of anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from dgc_repro.report.records import Run, load_runs

EPOCHS, STEPS = 20, 1000
PARAMETERS = 1_000_000.0
WORKERS = 4
COLUMNS = (
    *("step", "branch", "factor", "theta_min", "candidate", "gain_theta_min", "gain_candidate"),
    *("gain", "norm_before", "norm_after", "raw_norms", "sent_norms"),
    *("seconds", "samples", "throughput", "own_square", "mean_square"),
)
Of = Callable[[np.ndarray], Any]


def decisions(
    factor: Sequence[float],
    *,
    gain: Of = lambda step: 0.95 + 0 * step,
    theta_min: float = 10.0,
    every: int = 1,
    variance: Of = lambda step: np.nan * step,
    norm: Of = lambda step: np.nan * step,
) -> pd.DataFrame:
    """Decisions of a run that sent ``factor`` at each recorded step, 1 being dense. ``gain``, ``norm`` (the
    norm gain) and ``variance`` are functions of the step."""
    step = np.arange(1, len(factor) + 1) * every
    gains = np.asarray(gain(step), dtype=float)
    sent = np.asarray(factor, dtype=float)
    branch = np.where(sent == 1, "dense", np.where(sent == theta_min, "theta_min", "candidate"))
    mean_square = 0 * step + 2.0
    frame = pd.DataFrame(
        {
            "step": step,
            "branch": branch,
            "factor": sent,
            "theta_min": theta_min,
            "candidate": sent.max(),
            "gain_theta_min": gains,
            "gain_candidate": gains,
            "gain": np.where(sent == 1, 1.0, gains),
            "norm_before": 3.0,
            "norm_after": 3.0 * np.sqrt(gains),
            "raw_norms": 5.0,
            "sent_norms": 5.0 * np.asarray(norm(step), dtype=float),
            "seconds": 0.1,
            "samples": 128.0,
            "throughput": 1280.0 * np.where(sent == 1, 1.0, gains),
            "own_square": mean_square + np.asarray(variance(step), dtype=float),
            "mean_square": mean_square,
        }
    )
    return frame[list(COLUMNS)]


def write_run(
    runs: Path,
    row: str,
    *,
    seed: int = 0,
    final: float = 80.0,
    curve: Sequence[float] | None = None,
    decided: pd.DataFrame | None = None,
    floats: float = 1.0,
    step_seconds: float | None = 0.2,
    settings: dict[str, Any] | None = None,
    scale: str = "small",
    metric: str = "accuracy",
    lr: Sequence[float] | None = None,
) -> Path:
    """Write one record as it is published. ``floats``: of the dense row's; each float that is sent
    has its place beside it, and is gathered. ``final``: the last quality of a made-up curve, unless
    ``curve`` gives all."""
    folder = runs / f"gravac-training-{row}-{scale}-s{seed}-0"
    folder.mkdir(parents=True)
    per_epoch = STEPS // EPOCHS
    sent = PARAMETERS * floats
    gathered = floats < 1
    payload = sent * (8 if gathered else 4)
    wire = payload * (WORKERS - 1 if gathered else 2 * (WORKERS - 1) / WORKERS)
    column = {"accuracy": "accuracy_percent", "top5": "top5_percent", "perplexity": "perplexity"}
    lines = []
    for epoch in range(1, EPOCHS + 1):
        done = epoch / EPOCHS
        start = 400.0 if metric == "perplexity" else 10.0
        quality = curve[epoch - 1] if curve is not None else start + (final - start) * done**0.5
        steps = epoch * per_epoch
        lines.append(
            {
                "kind": "epoch",
                "epoch": epoch,
                "step": steps,
                "lr": 0.1 if lr is None else lr[epoch - 1],
                "train/loss": 2.0 - done,
                "train/accuracy_percent": 50.0,
                "test/loss": 2.0 - done,
                "test/accuracy_percent": quality,
                f"test/{column[metric]}": quality,
                "comm/floats": sent * steps,
                "comm/payload_bytes": payload * steps,
                "comm/wire_bytes": wire * steps,
                "time/train_seconds": 1.0 * steps,
                **({} if step_seconds is None else {"time/modelled_seconds": step_seconds * steps}),
            }
        )
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    config = {
        "experiment": {"paper": "gravac", "artifact": "training", "row": row},
        "scale": {"name": scale},
        "seed": seed,
        "launch": {"workers": WORKERS, "kind": "simulated"},
        "dataset": {"_target_": "dgc_repro.dataset.cifar10.Cifar10"},
        "model": {"_target_": "dgc_repro.model.x.X"},
        "goal": {"target": None, "metric": metric, "stop": False, "plateau": 0.01},
        "train": {"epochs": EPOCHS, "batch_size": 32, "step_time": "modelled", "compute_ms": 16.0},
        "network": {"as_workers": 32, "source": "made up"},
        "policy": {"_target_": "dgc_repro.policy.gravac.GraVAC", "window": 50},
        **(settings or {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {
        "hardware": "synthetic CPU",
        "torch": "0.0",
        "data": "synthetic",
        "commit": "0" * 40,
    }
    (folder / "environment.json").write_text(json.dumps(environment))
    (folder / "summary.json").write_text(json.dumps({"status": "finished", "steps": STEPS}))
    if decided is not None:
        decided.to_csv(folder / "decisions.csv", index=False)
    return folder


def read(runs: Path) -> list[Run]:
    """All records of a folder."""
    found, skipped = load_runs(sorted(runs.iterdir()))
    assert not skipped
    return list(found)


def stretches(*parts: tuple[int, float]) -> list[float]:
    """A factor for so many steps, one stretch after another."""
    return [factor for count, factor in parts for _ in range(count)]
