"""What a sink is: told of the run's start, of each step and epoch, and of its end, on rank 0.

The order is start, then any number of step, epoch and note, then finish if the run came to an end
that it can tell of, then close, always. A step's metrics:

    step                    1-based, over the whole run
    epoch                   1-based, the epoch that this step belongs to
    train/loss, train/accuracy_percent   of this epoch so far; of a text also train/perplexity, and
                                         the accuracy is that of the next word
    policy/rung, policy/label            the plan of this step; the label is text
    comm/payload_bytes                   of one worker, since the run's first step
    decision/branch, decision/gain, ...  of a policy that chooses by gradient: this step's decision, and
                                         as decision/timed_... the last time that it was told

An epoch's record has the keys of ``dgc_repro.paper.records.REQUIRED_METRICS`` and more of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Value = float | int | str
Metrics = Mapping[str, Value]


@dataclass(frozen=True)
class RunInfo:
    """What a sink may know of its run.

    ``config`` is the resolved config as plain values. ``start_step`` and ``start_epoch`` are the
    steps and whole epochs that the checkpoint covers, 0 for a run from the beginning.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    steps_per_epoch: int
    num_epochs: int
    start_step: int = 0
    start_epoch: int = 0


class Sink(Protocol):
    """One place that a run's numbers go to."""

    def start(self, run: RunInfo) -> None:
        """Open what is needed. UserError for what the user can mend."""

    def step(self, metrics: Metrics) -> None:
        """One training step is done."""

    def epoch(self, record: Metrics) -> None:
        """One epoch is done and evaluated. Call it before its checkpoint is written: lines that
        a checkpoint does not cover are dropped on resume, but missing ones cannot be made up."""

    def note(self, text: str) -> None:
        """Something that a person should know of this run, in one line."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run ended; ``summary["status"]`` says how ("finished" when nothing is left)."""

    def close(self) -> None:
        """Let go of files and processes; again, or without a start, it does nothing."""
