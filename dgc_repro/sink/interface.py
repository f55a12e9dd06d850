"""The interface of a sink. Only rank 0 has sinks.

The calls come in this order: start; any number of step, epoch and note; finish, unless the run was killed or
raised an error; close, always. The metrics of a step:

    step                    1-based, over the whole run
    epoch                   1-based, the epoch that this step belongs to
    train/loss, train/accuracy_percent   mean over this epoch so far; for text also train/perplexity, and the
                                         accuracy is that of the next token
    policy/rung, policy/label            the setting used in this step; the label is text
    comm/payload_bytes                   sent by one worker since the start of the run
    decision/branch, decision/gain, ...  the decision of this step, for a policy that decides by gradient;
                                         decision/timed_...: the last step time that the policy received

An epoch's record has the keys in ``dgc_repro.paper.records.REQUIRED_METRICS``, and others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Value = float | int | str
Metrics = Mapping[str, Value]


@dataclass(frozen=True)
class RunInfo:
    """What a sink receives about its run.

    config       the resolved config as plain values
    start_step   steps that the checkpoint covers; 0 if the run starts from the beginning
    start_epoch  whole epochs that the checkpoint covers
    """

    folder: Path
    name: str
    config: dict[str, Any]
    environment: dict[str, Any]
    num_steps: int
    num_epochs: int
    start_step: int = 0
    start_epoch: int = 0


class Sink(Protocol):
    """One destination for the numbers of a run."""

    def start(self, run: RunInfo) -> None:
        """Open files or connections. Raises UserError for a wrong setting."""

    def step(self, metrics: Metrics) -> None:
        """Called after each training step."""

    def epoch(self, record: Metrics) -> None:
        """Called after an epoch and its evaluation, before the checkpoint is written: a resumed run drops
        lines that the checkpoint does not cover, but it cannot restore missing ones."""

    def note(self, text: str) -> None:
        """One line about this run for people to read."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run ended. ``summary["status"]`` is "finished" or "stopped"."""

    def close(self) -> None:
        """Close files and end processes. Does nothing if called twice or before start."""


@dataclass(frozen=True)
class FanOut:
    """Forwards every call to all of ``sinks`` in order, so that the record comes before its mirrors."""

    sinks: Sequence[Sink]

    def start(self, run: RunInfo) -> None:
        for sink in self.sinks:
            sink.start(run)

    def step(self, metrics: Metrics) -> None:
        for sink in self.sinks:
            sink.step(metrics)

    def epoch(self, record: Metrics) -> None:
        for sink in self.sinks:
            sink.epoch(record)

    def note(self, text: str) -> None:
        for sink in self.sinks:
            sink.note(text)

    def finish(self, summary: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.finish(summary)

    def close(self) -> None:
        """Close all, the last first, even where closing one fails."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)
