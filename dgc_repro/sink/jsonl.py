"""The record of a run, as JSON lines.

metrics.jsonl has one line per epoch, steps.jsonl one line every few steps, and decisions.jsonl one line per
step of a policy that decides in every step.

Tables and figures are made from these lines alone. Each line is flushed when it is written, so a killed run
keeps its record. Before a run starts, train/checkpoint.py brings its record to the state of the checkpoint
that it continues from, or removes the record if there is none. NaN and infinity are written as null, because
JSON has neither; pandas reads null as NaN.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, TextIO

from dgc_repro import files
from dgc_repro.checked import checked, within
from dgc_repro.errors import writing
from dgc_repro.sink.interface import Metrics, RunInfo, Sink

EPOCHS_FILE = "metrics.jsonl"
STEPS_FILE = "steps.jsonl"
DECISIONS_FILE = "decisions.jsonl"
RECORD_FILES = (EPOCHS_FILE, STEPS_FILE, DECISIONS_FILE)
DECISION = "decision/"
EverySteps = Annotated[int, within(0), "10 is usual, 0 is never"]


@checked
class Jsonl:
    """Appends to the files in the run folder. With ``every_steps=0`` there is no steps.jsonl."""

    every_steps: EverySteps = 10
    _files: dict[str, TextIO] = field(default_factory=dict, init=False, repr=False, compare=False)

    def start(self, run: RunInfo) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        for name in (EPOCHS_FILE, STEPS_FILE) if self.every_steps else (EPOCHS_FILE,):
            self._open(run.folder / name)

    def step(self, metrics: Metrics) -> None:
        decision = {key: value for key, value in metrics.items() if key.startswith(DECISION)}
        if decision:
            if DECISIONS_FILE not in self._files:
                self._open(Path(self._files[EPOCHS_FILE].name).with_name(DECISIONS_FILE))
            write_line(
                self._files[DECISIONS_FILE],
                {"kind": "decision", "decision": metrics["step"], **decision},
            )
        if self.every_steps and int(metrics["step"]) % self.every_steps == 0:
            rest = {key: value for key, value in metrics.items() if key not in decision}
            write_line(self._files[STEPS_FILE], {"kind": "step", **rest})

    def epoch(self, record: Metrics) -> None:
        write_line(self._files[EPOCHS_FILE], {"kind": "epoch", **record})
        # The checkpoint that follows must not outlive this line, not even a power cut.
        os.fsync(self._files[EPOCHS_FILE].fileno())

    def note(self, text: str) -> None:
        write_line(self._files[EPOCHS_FILE], {"kind": "note", "text": text})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Nothing to do: launch/worker.py writes summary.json when everything else is on disk."""

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, path: Path) -> None:
        self._files[path.name] = files.appended(path)


def write_line(file: TextIO, record: Mapping[str, Any]) -> None:
    """Append one JSON object and flush it. NaN and infinity become null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in record.items()
    }
    with writing(Path(file.name)):
        file.write(json.dumps(plain, allow_nan=False) + "\n")
        file.flush()


def after(content: bytes, size: int) -> bytes:
    """The first ``size`` bytes of a record file, followed by the notes among the later lines."""
    notes = [line for line, record in _lines(content[size:]) if record.get("kind") == "note"]
    return content[:size] + "".join(f"{line}\n" for line in notes).encode()


def replay(folder: Path, sink: Sink) -> None:
    """Pass the record in a run folder to another sink: the notes, then steps and epochs as they were written.

    Steps are those in steps.jsonl, each with its decision. A null becomes NaN, except in decisions, where it
    means that there is no value.
    """
    epochs, steps, decisions = (_records(folder / name) for name in RECORD_FILES)
    by_step = {one.pop("decision"): one for one in decisions}
    for one in epochs:
        if "text" in one:
            sink.note(one["text"])
    calls: list[tuple[Any, dict[str, Any]]]
    calls = [(sink.step, _with_nan(one) | by_step.get(one["step"], {})) for one in steps]
    calls += [(sink.epoch, _with_nan(one)) for one in epochs if "text" not in one]
    for call, one in sorted(calls, key=lambda pair: pair[1]["step"]):  # stable: steps come first
        call(one)


def _lines(content: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines that hold a JSON object. The last line of a killed process may not."""
    for line in content.decode("utf-8", errors="replace").splitlines():
        try:
            record = files.parsed_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield line, record


def _records(path: Path) -> list[dict[str, Any]]:
    """The values of every line of a record file; none if there is no file."""
    found = [record for _, record in _lines(files.content(path))] if path.is_file() else []
    for record in found:
        del record["kind"]
    return found


def _with_nan(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: math.nan if value is None else value for key, value in record.items()}
