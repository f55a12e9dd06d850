"""The record: one JSON object a line, metrics.jsonl by epoch and steps.jsonl every few steps; where a
policy decides in each step, decisions.jsonl has what it saw and took.

Everything that report/ draws comes from these lines, so they outlive a killed run. Each is flushed
as it is written. A checkpoint holds a copy of the record, and the record of a resumed run begins with
it (train/checkpoint.py); a run that begins anew first drops the lines of the run before. A number that
is not finite is written as null, because NaN is not JSON; pandas reads null back as NaN.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TextIO

from dgc_repro.checked import refuse, within
from dgc_repro.errors import UserError
from dgc_repro.sink.interface import Metrics, RunInfo

EPOCHS_FILE = "metrics.jsonl"
STEPS_FILE = "steps.jsonl"
DECISIONS_FILE = "decisions.jsonl"
RECORD_FILES = (EPOCHS_FILE, STEPS_FILE, DECISIONS_FILE)
DECISION = "decision/"
EverySteps = Annotated[int, within(0), "10 is usual, 0 is never"]


@dataclass
class Jsonl:
    """Appends to the files of the run folder; ``every_steps`` 0 leaves steps.jsonl out.

    Not frozen: it holds the files that it has open.
    """

    every_steps: EverySteps = 10
    _epochs: TextIO | None = field(default=None, init=False, repr=False)
    _steps: TextIO | None = field(default=None, init=False, repr=False)
    _decisions: TextIO | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)

    def __post_init__(self) -> None:
        refuse(type(self), vars(self))

    def start(self, run: RunInfo) -> None:
        """UserError where metrics.jsonl has a gap before the epoch that the checkpoint covers.

        A run that goes on from another folder's checkpoint has no lines of the epochs before.
        """
        run.folder.mkdir(parents=True, exist_ok=True)
        epochs, steps = run.folder / EPOCHS_FILE, run.folder / STEPS_FILE
        kept = keep_covered(epochs, "epoch", run.start_epoch, notes=run.start_step > 0)
        keep_covered(steps, "step", run.start_step)
        keep_covered(run.folder / DECISIONS_FILE, "decision", run.start_step)
        self._folder = run.folder
        first = min(kept, default=run.start_epoch + 1)
        if missing := sorted(set(range(first, run.start_epoch + 1)) - kept):
            raise UserError(
                f"{epochs}: a line for each epoch that the checkpoint covers, got none for "
                f"{', '.join(map(str, missing))}; delete the run folder and run again"
            )
        self._epochs = epochs.open("a", encoding="utf-8")
        if self.every_steps:
            self._steps = steps.open("a", encoding="utf-8")

    def step(self, metrics: Metrics) -> None:
        decided = {key: value for key, value in metrics.items() if key.startswith(DECISION)}
        if decided:
            if self._decisions is None:
                self._decisions = (self._folder / DECISIONS_FILE).open("a", encoding="utf-8")
            number = metrics["step"]
            write_line(self._decisions, {"kind": "decision", "decision": number, **decided})
            metrics = {key: value for key, value in metrics.items() if key not in decided}
        if self._steps is not None and int(metrics["step"]) % self.every_steps == 0:
            write_line(self._steps, {"kind": "step", **metrics})

    def epoch(self, record: Metrics) -> None:
        assert self._epochs is not None, "start comes first"
        write_line(self._epochs, {"kind": "epoch", **record})
        # The checkpoint that follows must not outlive this line, not even a power cut.
        os.fsync(self._epochs.fileno())

    def note(self, text: str) -> None:
        assert self._epochs is not None, "start comes first"
        write_line(self._epochs, {"kind": "note", "text": text})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Nothing: summary.json says that all else is there, so its writer writes it last."""

    def close(self) -> None:
        for file in (self._epochs, self._steps, self._decisions):
            if file is not None:
                file.close()
        self._epochs = self._steps = self._decisions = None


def write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Append one JSON object and flush it; a number that is not finite becomes null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    file.write(json.dumps(plain, allow_nan=False) + "\n")
    file.flush()


def keep_covered(path: Path, kind: str, last: int, notes: bool = False) -> set[int]:
    """Drop the lines of ``kind`` whose number is beyond ``last``, and half-written ones.

    Notes are the run's history and stay, if ``notes``. The file is replaced whole or not at all.
    Returns the numbers that stayed.
    """
    if not path.exists():
        return set()
    before = path.read_bytes()
    kept, numbers = [], set()
    for line, record in _lines(before):
        number = record.get(kind)
        if record.get("kind") == kind and isinstance(number, int) and number <= last:
            kept.append(line)
            numbers.add(number)
        elif record.get("kind") == "note" and notes:
            kept.append(line)
    whole = "".join(f"{line}\n" for line in kept).encode()
    if whole != before:
        replace(path, whole)
    return numbers


def after(content: bytes, size: int) -> bytes:
    """The first ``size`` bytes of a file of the record, and the notes among the lines after them."""
    notes = [line for line, record in _lines(content[size:]) if record.get("kind") == "note"]
    return content[:size] + "".join(f"{line}\n" for line in notes).encode()


def replace(path: Path, content: bytes) -> None:
    """Write a file anew; a process that is killed meanwhile leaves the old one."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _lines(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that hold a JSON object. A process that was killed leaves a last line that does not."""
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield line, record
