"""The ranks of a replay, seen from the process that measures: start them, tell them what to do.

A world of ranks serves many measurements: cases are opened and closed in it, and in a lab the rates
of its links change while it runs, so that warm-up steps need not crawl through a slow link.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Self

from dgc_repro.bench.record import Recorded
from dgc_repro.bench.replay import NO_COMPUTE, Case, Compute, Measured
from dgc_repro.network.lab import Lab

START_SECONDS = 120.0
LATER_SECONDS = 3.0
"""How long the other ranks may still speak when one has failed."""
LOOPBACK = "lo"
PAIR = 2
_TIMED_OUT = "timed out"  # in what gloo says when another rank was too slow for it


class RanksFailed(RuntimeError):
    """A rank raised, died, or did not answer in time; the message says which, and why."""


class RanksLate(RanksFailed):
    """No rank said that anything is wrong, but not all have answered in time."""


class Ranks:
    """``workers`` processes of bench/rank.py, on loopback or on a lab's links. A context
    manager; when a job fails, they are gone, and the next needs new ones."""

    def __init__(
        self,
        workers: int,
        links: Lab | None = None,
        *,
        timeout_seconds: float = 120.0,
        backend: str = "gloo",
    ) -> None:
        """``backend``: nccl gives rank i the i-th GPU."""
        self.workers = workers
        self._backend = backend
        self._links = links
        self._timeout_seconds = timeout_seconds
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._jobs: list[Connection] = []
        self._answers: list[Connection] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dgc_repro_replay_")
        folder = Path(self._folder.name)
        interface = self._links.interface if self._links is not None else LOOPBACK
        counted = interface if self._links is not None else "-"
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": interface,
            "PYTHONUNBUFFERED": "1",
        }
        try:
            for rank in range(self.workers):
                log = folder / f"rank{rank}.log"
                command = [sys.executable, "-m", "dgc_repro.bench.rank", str(rank)]
                command += [str(self.workers), str(folder / "store"), counted]
                command += [str(self._timeout_seconds), self._backend]
                with log.open("wb") as output:
                    self._start(rank, command, environment, output)
                self._logs.append(log)
            self._collect(START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def _start(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> None:
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": log,
            "env": dict(environment),
        }
        if self._links is None:
            process = subprocess.Popen(command, **pipes)
        else:
            process = self._links.popen(rank, command, **pipes)
        self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        self._jobs.append(Connection(os.dup(process.stdin.fileno()), readable=False))
        self._answers.append(Connection(os.dup(process.stdout.fileno()), writable=False))
        process.stdin.close()
        process.stdout.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that were started here."""
        for connection in (*self._jobs, *self._answers):
            connection.close()
        for process in self._processes:
            process.kill()
            process.wait()
        self._jobs, self._answers, self._processes = [], [], []
        self._folder.cleanup()

    def load(self, recorded: Recorded) -> int:
        """Each rank takes its own gradients; how many values there are."""
        values: int = self.ask("load", str(recorded.folder), recorded.multiply_adds)[0]
        return values

    def open(self, case: Case) -> float:
        """Make a case ready; the seconds of its last warm-up step, of the slowest rank."""
        return float(max(self.ask("open", case)))

    def close_case(self, case: Case) -> None:
        """Let go of a case's buffers."""
        self.ask("close", case.key)

    def steps(
        self,
        case: Case,
        compute: Compute = NO_COMPUTE,
        *,
        repeats: int,
        settle: int = 0,
        beside: Case | None = None,
        seconds: float = 600.0,
    ) -> Measured:
        """Time an open case; see `rank.Rank.steps`. ``seconds``: to be done in."""
        other = beside.key if beside is not None else None
        told = self.ask("steps", case.key, compute, repeats, settle, other, seconds=seconds)
        return Measured.of_ranks(told)

    def ask(self, job: str, *arguments: Any, seconds: float = 600.0) -> list[Any]:
        """Every rank's answer, in rank order. Raises RanksFailed, RanksLate where it is only the time."""
        try:
            for connection in self._jobs:
                connection.send((job, arguments))
        except OSError:  # a rank is gone: its log says why
            pass
        return self._collect(seconds)

    def _collect(self, seconds: float) -> list[Any]:
        answers: dict[int, Any] = {}
        wrong: dict[int, str] = {}
        end = time.monotonic() + seconds
        while len(answers) + len(wrong) < self.workers and (left := end - time.monotonic()) > 0:
            open_ones = [c for r, c in enumerate(self._answers) if r not in {*answers, *wrong}]
            for connection in wait(open_ones, left):
                rank = self._answers.index(connection)  # type: ignore[arg-type]
                try:
                    good, answer = self._answers[rank].recv()
                except (EOFError, OSError):
                    good, answer = False, f"died: {self._last_words(rank)}"
                (answers if good else wrong)[rank] = answer
                if not good:
                    end = min(end, time.monotonic() + LATER_SECONDS)
        if len(answers) == self.workers:
            return [answers[rank] for rank in range(self.workers)]
        only_late = all(_TIMED_OUT in reason.lower() for reason in wrong.values())
        for rank in range(self.workers):
            if rank not in answers and rank not in wrong:
                wrong[rank] = f"did not answer within {seconds:.0f} s"
        first = next(iter(wrong))
        self.close()
        raise (RanksLate if only_late else RanksFailed)(f"rank {first} {wrong[first]}")

    def _last_words(self, rank: int) -> str:
        lines = self._logs[rank].read_text(encoding="utf-8", errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()]
        reasons = [line for line in said if line.startswith("what():")]
        return (reasons or said or ["without a word"])[-1]


def on_pair(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """What rank 0 of two gloo ranks on loopback returns; both call the function. Raises RanksFailed."""
    with Ranks(PAIR) as ranks:
        return ranks.ask("call", function, *arguments, seconds=seconds)[0]
