"""The record of a run, as JSON lines.

metrics.jsonl has one line per epoch, steps.jsonl one line every few steps, and decisions.jsonl one line per
step of a policy that decides in every step.

Tables and figures are made from these lines alone. Each line is flushed when it is written, so a killed run
keeps its record. A checkpoint holds a copy of the record, and a resumed run starts from that copy
(train/checkpoint.py); a run that starts over drops the old lines first. NaN and infinity are written as null,
because JSON has neither; pandas reads null as NaN.
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
from dgc_repro.errors import UserError, writing
from dgc_repro.sink.interface import Metrics, RunInfo, Sink

EPOCHS_FILE = "metrics.jsonl"
STEPS_FILE = "steps.jsonl"
DECISIONS_FILE = "decisions.jsonl"
RECORD_FILES = (EPOCHS_FILE, STEPS_FILE, DECISIONS_FILE)
DECISION = "decision/"
EverySteps = Annotated[int, within(0), "10 is usual, 0 is never"]


@dataclass
class Jsonl:
    """Appends to the files in the run folder. With ``every_steps=0`` there is no steps.jsonl.

    Not frozen, because it holds open files.
    """

    every_steps: EverySteps = 10
    _epochs: TextIO | None = field(default=None, init=False, repr=False)
    _steps: TextIO | None = field(default=None, init=False, repr=False)
    _decisions: TextIO | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)

    def __post_init__(self) -> None:
        refuse(type(self), vars(self))

    def start(self, run: RunInfo) -> None:
        """Open the files. Raises UserError if metrics.jsonl lacks an epoch that the checkpoint covers.

        A run that starts from another folder's checkpoint has no lines for the earlier epochs.
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
        """Nothing to do: launch/worker.py writes summary.json when everything else is on disk."""

    def close(self) -> None:
        for file in (self._epochs, self._steps, self._decisions):
            if file is not None:
                file.close()
        self._epochs = self._steps = self._decisions = None


def write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Append one JSON object and flush it. NaN and infinity become null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    with writing(Path(file.name)):
        file.write(json.dumps(plain, allow_nan=False) + "\n")
        file.flush()


def keep_covered(path: Path, kind: str, last: int, notes: bool = False) -> set[int]:
    """Drop lines of ``kind`` with a number above ``last``, and half-written lines.

    Notes are kept if ``notes``. The file is replaced as a whole or not at all. Returns the numbers kept.
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
    """The first ``size`` bytes of a record file, followed by the notes among the later lines."""
    notes = [line for line, record in _lines(content[size:]) if record.get("kind") == "note"]
    return content[:size] + "".join(f"{line}\n" for line in notes).encode()


def replace(path: Path, content: bytes) -> None:
    """Replace a file. If the process is killed meanwhile, the old file stays."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with writing(path), temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _lines(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that hold a JSON object. The last line of a killed process may not."""
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield line, record


def replay(folder: Path, sink: Sink) -> None:
    """Pass the record in a run folder to another sink: steps, epochs and notes, in their order.

    Steps are those in steps.jsonl, each with its decision. A null becomes NaN, except in decisions, where it
    means that there is no value.
    """
    steps = [record for _, record in _recorded(folder / STEPS_FILE)]
    numbers = {record["step"] for record in steps}
    decided = {
        record["decision"]: {key: record[key] for key in record if key.startswith(DECISION)}
        for _, record in _recorded(folder / DECISIONS_FILE)
        if record.get("decision") in numbers
    }
    passed = 0

    def pass_steps(last: float) -> None:
        nonlocal passed
        while passed < len(steps) and steps[passed]["step"] <= last:
            record = steps[passed]
            sink.step(_with_nan(record) | decided.get(record["step"], {}))
            passed += 1

    for kind, record in _recorded(folder / EPOCHS_FILE):
        if kind == "note":
            sink.note(record["text"])
        else:
            pass_steps(record["step"])
            sink.epoch(_with_nan(record))
    pass_steps(math.inf)


def _recorded(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The kind and the values of every line of a record file; nothing if there is no file."""
    if path.is_file():
        for _, record in _lines(path.read_bytes()):
            yield record.pop("kind"), record


def _with_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in record.items()}
