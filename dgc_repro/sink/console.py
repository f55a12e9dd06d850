"""Standard output: the progress of the whole run (progress.py), and one line for each epoch that is done.

Without a terminal there are no control codes. Bytes are what one worker has sent since the run's first step;
seconds are of training, without the evaluation, also since then.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from dgc_repro.progress import Progress, console_of
from dgc_repro.sink.interface import Metrics, RunInfo

LABEL_WIDTH = 14
"""Longer rung labels are cut in the bar, so that it fits 80 columns."""


class Console:
    """Prints to ``stream`` (default: standard output)."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._folder = Path()
        self._num_epochs = 0
        self._progress: Progress | None = None

    def start(self, run: RunInfo) -> None:
        self._folder, self._num_epochs = run.folder, run.num_epochs
        self.note(run.name)
        self._progress = Progress(
            f"epoch {min(run.start_epoch + 1, run.num_epochs)}/{run.num_epochs}",
            run.num_steps,
            run.start_step,
            console=console_of(self._stream),
        )

    def step(self, metrics: Metrics) -> None:
        assert self._progress is not None, "start comes first"
        self._progress.advance(
            int(metrics["step"]) - self._progress.completed,
            now(metrics),
            f"epoch {metrics['epoch']}/{self._num_epochs}",
        )

    def epoch(self, record: Metrics) -> None:
        self.note(epoch_line(record, self._num_epochs))

    def note(self, text: str) -> None:
        if self._progress is not None:
            self._progress.line(text)
        else:
            print(text, file=self._stream, flush=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()
        self.note(f"{summary.get('status', 'ended')}: {self._folder}")

    def close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def now(metrics: Metrics) -> str:
    """Loss, accuracy, rung and bytes sent, of the step just done. Loss and accuracy are left out before the
    first round of local steps."""
    label = str(metrics["policy/label"])
    known = [f"loss {metrics['train/loss']:.3f}", score(metrics, "train", 1, "acc ")]
    return " ".join(
        [
            *(known if is_known(metrics) else ()),
            label if len(label) <= LABEL_WIDTH else f"{label[: LABEL_WIDTH - 1]}\u2026",
            bytes_in_words(float(metrics["comm/payload_bytes"])),
        ]
    )


def epoch_line(record: Metrics, num_epochs: int) -> str:
    """One epoch in at most 80 columns; what the record does not have is left out."""
    width = len(str(num_epochs))
    parts = [f"epoch {record['epoch']:>{width}}/{num_epochs}"]
    for name, key in (("test", "test"), ("val", "validation")):
        if f"{key}/accuracy_percent" in record:
            parts.append(f"{name} {score(record, key, 2)}")
    if "train/loss" in record and is_known(record):
        parts.append(f"loss {record['train/loss']:.3f}")
    if "policy/label" in record:
        parts.append(str(record["policy/label"]))
    if "comm/payload_bytes" in record:
        parts.append(bytes_in_words(float(record["comm/payload_bytes"])))
    if "time/train_seconds" in record:
        seconds = float(record["time/train_seconds"])
        parts.append(f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s")
    return "  ".join(parts)


def is_known(metrics: Metrics) -> bool:
    """Whether the epoch has a step whose loss is shared. Then the accuracy is a number, even if the loss is
    not."""
    return not math.isnan(float(metrics.get("train/accuracy_percent", 0.0)))


def score(metrics: Metrics, part: str, digits: int, name: str = "") -> str:
    """Perplexity where there is one, below 10 with three decimals; elsewhere accuracy, with ``name`` before
    it."""
    if f"{part}/perplexity" in metrics:
        perplexity = float(metrics[f"{part}/perplexity"])
        return f"ppl {perplexity:.{3 if perplexity < 10 else 1}f}"
    return f"{name}{metrics[f'{part}/accuracy_percent']:.{digits}f} %"


def bytes_in_words(count: float) -> str:
    """``12.3 MB``, of a million bytes; from 1,000 of them on, ``1.23 GB``."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"
