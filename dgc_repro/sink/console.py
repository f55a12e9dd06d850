"""The terminal: a progress bar over the whole run, and one line for each epoch that is done.

Without a terminal (a pipe, a log file, a cluster job) only the lines are printed, with no control
codes. Bytes are what one worker has sent since the run's first step; seconds are of training,
without the evaluation, also since then.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

from dgc_repro.sink.interface import Metrics, RunInfo

REFRESHES_PER_SECOND = 4
"""Each costs the training process a moment."""
LABEL_WIDTH = 14
"""Longer rung labels are cut in the bar, so that it fits 80 columns."""


@dataclass
class Console:
    """Prints to ``stream`` (default: standard output). Not frozen: it holds the bar it draws."""

    stream: TextIO | None = None
    _run: RunInfo | None = field(default=None, init=False, repr=False)
    _bar: Bar | None = field(default=None, init=False, repr=False)

    def start(self, run: RunInfo) -> None:
        self._run = run
        self._print(run.name)
        if is_terminal(self._stream):
            self._bar = Bar(self._stream, run)

    def step(self, metrics: Metrics) -> None:
        if self._bar is not None:
            self._bar.update(metrics)

    def epoch(self, record: Metrics) -> None:
        assert self._run is not None, "start comes first"
        self._print(epoch_line(record, self._run.num_epochs))

    def note(self, text: str) -> None:
        self._print(text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        assert self._run is not None, "start comes first"
        self.close()
        self._print(f"{summary.get('status', 'ended')}: {self._run.folder}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _stream(self) -> TextIO:
        return self.stream or sys.stdout

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.print_above(line)
        else:
            print(line, file=self._stream, flush=True)


class Bar:
    """The bar's one line: epoch, bar, loss, accuracy, rung, bytes sent, time left."""

    def __init__(self, stream: TextIO, run: RunInfo) -> None:
        self._run = run
        self._began = time.monotonic()
        self._progress = Progress(
            text("{task.description}"),
            BarColumn(bar_width=None),
            text("{task.fields[now]}"),
            console=Terminal(file=stream),
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            expand=True,
        )
        self._task: TaskID = self._progress.add_task(
            f"epoch {min(run.start_epoch + 1, run.num_epochs)}/{run.num_epochs}",
            total=run.num_epochs * run.steps_per_epoch,
            completed=run.start_step,
            now="",
        )
        self._progress.start()

    def update(self, metrics: Metrics) -> None:
        """Show the metrics of the step just done."""
        step, label = int(metrics["step"]), str(metrics["policy/label"])
        now = [
            f"loss {metrics['train/loss']:.3f}",
            score(metrics, "train", 1, "acc "),
            label if len(label) <= LABEL_WIDTH else f"{label[: LABEL_WIDTH - 1]}\u2026",
            bytes_in_words(float(metrics["comm/payload_bytes"])),
            f"{duration(self._seconds_left(step))} left",
        ]
        epoch = f"epoch {metrics['epoch']}/{self._run.num_epochs}"
        self._progress.update(self._task, completed=step, description=epoch, now=" ".join(now))

    def print_above(self, line: str) -> None:
        """Print a line that stays, above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar off the screen."""
        self._progress.stop()

    def _seconds_left(self, step: int) -> float:
        # At this process's mean pace, evaluation included: rich's own estimate looks back over a
        # few seconds only, and so jumps at the end of each epoch.
        done = max(step - self._run.start_step, 1)
        left = self._run.num_epochs * self._run.steps_per_epoch - step
        return (time.monotonic() - self._began) * left / done


def text(template: str) -> TextColumn:
    """A column of one line; a label may hold brackets, hence no markup."""
    return TextColumn(template, markup=False, table_column=Column(no_wrap=True))


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` can redraw a line. Rich's own test believes FORCE_COLOR in a pipe too."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def epoch_line(record: Metrics, num_epochs: int) -> str:
    """One epoch in at most 80 columns; what the record does not have is left out."""
    width = len(str(num_epochs))
    parts = [f"epoch {record['epoch']:>{width}}/{num_epochs}"]
    for name, key in (("test", "test"), ("val", "validation")):
        if f"{key}/accuracy_percent" in record:
            parts.append(f"{name} {score(record, key, 2)}")
    if "train/loss" in record:
        parts.append(f"loss {record['train/loss']:.3f}")
    if "policy/label" in record:
        parts.append(str(record["policy/label"]))
    if "comm/payload_bytes" in record:
        parts.append(bytes_in_words(float(record["comm/payload_bytes"])))
    if "time/train_seconds" in record:
        seconds = float(record["time/train_seconds"])
        parts.append(f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s")
    return "  ".join(parts)


def score(metrics: Metrics, part: str, digits: int, name: str = "") -> str:
    """Perplexity where there is one; elsewhere accuracy, with ``name`` before it."""
    if f"{part}/perplexity" in metrics:
        return f"ppl {metrics[f'{part}/perplexity']:.1f}"
    return f"{name}{metrics[f'{part}/accuracy_percent']:.{digits}f} %"


def bytes_in_words(count: float) -> str:
    """``12.3 MB``, of a million bytes; from 1,000 of them on, ``1.23 GB``."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.2f} GB"


def duration(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
