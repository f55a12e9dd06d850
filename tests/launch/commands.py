"""A run as a real process that a test starts, stops and kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from ranks import processes_of, rank_of
from tiny_run import configured, play

from dgc_repro.launch.build import build_run
from dgc_repro.nests import tensors_of

PATIENCE_SECONDS = 200
"""For what takes 10 to 15 on an idle machine: a busy one starts Python slowly."""
TESTS = Path(__file__).resolve().parent.parent
PATHS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}


def refused(answer: tuple[int, list[str]]) -> str:
    """The one line on stderr, after the checks that every mistake has to pass."""
    code, lines = answer
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def wait_for(done: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def on_both(action: Callable[[str], Any]) -> dict[str, Any]:
    """Run the action as ranks "0" and "1", which are threads of these names; return its values by rank."""
    found = {}

    def act(rank: str) -> None:
        found[rank] = action(rank)

    threads = [threading.Thread(target=act, args=rank, name=rank) for rank in "01"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def by_rank(*values: Any) -> Callable[..., Any]:
    """A function that returns the value of the rank that calls it, in `on_both`."""
    return lambda *_: values[int(threading.current_thread().name)]


class Command:
    """``python -m dgc_repro`` with one set of arguments, started as often as needed."""

    def __init__(
        self, folder: Path, *overrides: str, through: Sequence[str] = ("dgc_repro",)
    ) -> None:
        """``through``: the modules and options before the overrides, such as torchrun's."""
        self.folder = folder
        self.runs = folder / "runs"
        self.command = [sys.executable, "-m", *through, *overrides, f"paths.runs={self.runs}"]
        self.output = "stdout.txt"
        self._started: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._started is not None
        return self._started

    def start(self) -> subprocess.Popen[str]:
        with (self.folder / self.output).open("wb") as out:  # a pipe would stay open in the ranks
            self._started = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=os.environ | PATHS,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )
        return self._started

    def run_folder(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of the record; none where it is not there yet."""
        texts = [path.read_text() for path in self.runs.glob(f"*/{name}")]
        return [
            json.loads(line) for text in texts for line in text.splitlines() if line.endswith("}")
        ]

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_folder() / "summary.json").read_text())
        return found

    def last_step(self) -> int:
        return max((int(line["step"]) for line in self.lines("steps.jsonl")), default=0)

    def wait_for_step(self, step: int) -> None:
        def is_there() -> bool:
            assert self.process.poll() is None, self.process.communicate()[1]
            return self.last_step() >= step

        wait_for(is_there, f"step {step}")

    def ranks(self) -> dict[str, int]:
        """Process ids by rank."""
        found = {}
        for pid in processes_of(self.runs):
            try:
                rank = rank_of(pid)
            except OSError:  # it has ended
                continue
            if rank is not None:
                found[rank] = pid
        return found

    def end(self) -> tuple[int, list[str]]:
        """Exit code and lines on stderr; no process of the run may be left."""
        errors = self.process.communicate(timeout=PATIENCE_SECONDS)[1]
        assert processes_of(self.runs) == {}, "a process was left behind"
        return self.process.returncode, errors.splitlines()

    def printed(self) -> str:
        return (self.folder / self.output).read_text()

    def steps_saved(self) -> list[int]:
        folders = (self.run_folder() / "checkpoints").glob("step-*")
        return sorted(int(path.name.removeprefix("step-")) for path in folders)


def assert_ends_as_simulated(folder: Path, *overrides: str) -> None:
    """A finished run has the record, the model and the residuals of a simulated one that nobody disturbed."""
    run = build_run(configured(*overrides, "launch=simulated"), torch.device("cpu"))
    expected = play(run).records
    texts = [(folder / name).read_text() for name in ("steps.jsonl", "metrics.jsonl")]
    steps, lines = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert [step["step"] for step in steps] == list(range(1, run.progress.step + 1))
    for key in ("train/loss", "comm/payload_bytes", "comm/wire_bytes"):
        told = [line[key] for line in lines if line["kind"] == "epoch"]
        assert told == [record[key] for record in expected], key
    saved = max((folder / "checkpoints").glob("step-*"))
    assert saved.name == f"step-{run.progress.step:08d}"
    states = {f"worker-{i}": run.exchange.states(i) for i in range(len(run.workers.ranks))}
    for name, state in {"shared": run.module.state_dict(), **states}.items():
        kept = torch.load(saved / f"{name}.pt", weights_only=True)
        part = kept["model" if name == "shared" else "exchange"]
        pairs = zip(tensors_of(part), tensors_of(state), strict=True)
        assert all(torch.equal(*pair) for pair in pairs), name
