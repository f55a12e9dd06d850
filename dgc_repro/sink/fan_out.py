"""Several sinks as one: each is told in order, so the record comes before its mirrors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dgc_repro.sink.interface import Metrics, RunInfo, Sink


@dataclass(frozen=True)
class FanOut:
    """Forwards every call to all of ``sinks``."""

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
