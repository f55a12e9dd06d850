"""Run a row in processes of its own, so that a crash, a hang or a flood of output is one case's failure.

A process that fails or dies in a case is replaced by a new one, which goes on with the next case.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgc_repro.selfcheck.rows import Row

PASS, FAIL, SKIP, STOPPED = "PASS", "FAIL", "SKIP", "not run"
MOST_FAILURES = 5  # of a row's cases; each costs a new process
GRACE_SECONDS = 5.0  # for tracebacks of a hang, and for the other ranks after one has ended
LOG_BYTES, LOG_KEPT = 64 << 20, 1 << 20  # a row's output; how much of it the report keeps
WORKER = "dgc_repro.selfcheck.worker"
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_PROTO": "Simple"}
"""Variables of ranks that share a GPU, beside a `NCCL_HOSTID` for each. nccl refuses two ranks with the same
host and the same GPU: before 2.30 the ids make hosts of the ranks, from 2.30 on the first variable allows
the GPU twice. Few blocks of a kernel fit beside those of the other rank, which it waits for."""


@dataclass
class Case:
    """One case of a row, and how it ended."""

    name: str
    status: str
    detail: str
    seconds: float


@dataclass
class Result:
    """How a row ended. ``detail``: one line; ``log``: all that its processes printed."""

    row: str
    status: str
    detail: str
    seconds: float = 0.0
    cases: list[Case] = field(default_factory=list)
    log: str = ""


def run_row(row: Row, timeout: float, tell: Callable[[str], object]) -> Result:
    """Run all cases of a row. ``timeout``: seconds in which a case must end; ``tell``: is called with what
    runs now. KeyboardInterrupt ends the row's processes and passes."""
    began = time.monotonic()
    result = Result(row.name, PASS, "")
    with tempfile.TemporaryDirectory(prefix="dgc_repro_selfcheck_") as name:
        folder = Path(name)
        while True:
            ended = _attempt(row, timeout, result, folder, tell)
            failures = [case for case in result.cases if case.status == FAIL]
            if ended is not None or len(failures) == MOST_FAILURES:
                break
        result.log = _kept(folder / "log")
    result.seconds = time.monotonic() - began
    skipped = [case for case in result.cases if case.status == SKIP]
    if failures:
        result.status, every = FAIL, len(result.cases)
        first = f"{failures[0].name}: {failures[0].detail}".removeprefix(": ")
        result.detail = first if every == 1 else f"{len(failures)} of {every} cases; {first}"
        if ended is None:
            result.detail += f" (the row ended after {MOST_FAILURES} failures)"
    elif ended is not None and ended.status != PASS:
        result.status, result.detail = ended.status, ended.detail
    elif skipped and len(skipped) == len(result.cases):
        result.status, result.detail = SKIP, skipped[0].detail
    else:
        result.detail = (ended and ended.detail) or f"{len(result.cases)} cases"
        if skipped:
            result.detail += f"; {len(skipped)} skipped ({skipped[0].detail})"
    return result


def _attempt(
    row: Row, timeout: float, result: Result, folder: Path, tell: Callable[[str], object]
) -> Case | None:
    """Run cases from the first that has no result on, until one fails. How the whole row has ended, or None
    where cases are left."""
    now, since = "", time.monotonic()

    def note(status: str, detail: str) -> None:
        result.cases.append(Case(now, status, detail, time.monotonic() - since))

    with (folder / "log").open("ab") as log:
        for message in _messages(row, timeout, len(result.cases), folder, log.fileno()):
            if "begin" in message:
                now, since = message["begin"], time.monotonic()
                tell(f"{row.name}: {now}" if now else row.name)
            elif "status" in message:
                note(message["status"], message["detail"])
                if message["status"] == FAIL:
                    return None
                now = ""
            elif "done" in message:
                return Case("", PASS, message["done"], 0.0)
            elif "skip" in message:
                return Case("", SKIP, message["skip"], 0.0)
            elif now:  # it ended in a case
                note(FAIL, message["failed"])
                return None
            else:
                return Case("", FAIL, message["failed"], 0.0)
    raise AssertionError("messages end with how the processes ended")


def _messages(
    row: Row, timeout: float, skip: int, folder: Path, log: int
) -> Iterator[dict[str, Any]]:
    """What the row's processes report, the last message being how they ended."""
    listening, speaking = os.pipe()
    os.set_blocking(listening, False)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(row.ranks):
            job = {
                "module": row.module, "device": row.device, "skip": skip, "timeout": timeout,
                "rank": rank, "pipe": speaking, "parent": os.getpid(),
            }  # fmt: skip
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", WORKER, json.dumps(job)],
                    env=_environment(row, rank, folder / f"rendezvous{skip}"),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(speaking,),
                    start_new_session=True,
                )
            )
        os.close(speaking)
        speaking = -1
        yield from _heard(processes, listening, timeout, log)
    finally:
        for process in processes:
            _kill(process)
        for descriptor in (listening, speaking):
            if descriptor >= 0:
                os.close(descriptor)


def _heard(
    processes: list[subprocess.Popen[bytes]], listening: int, timeout: float, log: int
) -> Iterator[dict[str, Any]]:
    text, since, ended_at = b"", time.monotonic(), None
    while True:
        heard = b""
        if select.select([listening], [], [], 0.05)[0]:
            heard = os.read(listening, 1 << 16)
        if heard:
            *lines, text = (text + heard).split(b"\n")
            for line in lines:
                yield json.loads(line)
            since = time.monotonic()
            continue
        # Nothing is left in the pipe: what a process reported before it ended has been read.
        now = time.monotonic()
        codes = [process.poll() for process in processes]
        bad = {rank: code for rank, code in enumerate(codes) if code}
        if ended_at is None and (bad or None not in codes):
            ended_at = now
        if ended_at is not None and (None not in codes or now > ended_at + GRACE_SECONDS):
            rank, code = min(bad.items(), key=lambda one: one[1] >= 0, default=(0, 0))
            who = f"rank {rank}" if len(processes) > 1 else "the process"
            yield {"failed": f"{who} {_ending(code)}"}
            return
        if now > since + timeout + GRACE_SECONDS:
            yield {"failed": f"hangs: no answer within {timeout:g} s"}
            return
        if os.fstat(log).st_size > LOG_BYTES:
            yield {"failed": f"printed more than {LOG_BYTES >> 20} MB"}
            return


def _environment(row: Row, rank: int, rendezvous: Path) -> dict[str, str]:
    """Of a row's process. torchrun's variables would make it a rank of a run."""
    of_torchrun = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TRITON_INTERPRET")
    kept = {name: value for name, value in os.environ.items() if name not in of_torchrun}
    own = {
        "OMP_NUM_THREADS": "1",  # sums in the order of one thread
        "MKL_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "SELFCHECK_RANK": str(rank),
        "SELFCHECK_RANKS": str(row.ranks),
        "SELFCHECK_RENDEZVOUS": str(rendezvous),
    }
    if row.shares_gpu:
        own |= SHARING | {"NCCL_HOSTID": f"selfcheck{rank}"}
    return {**kept, **own, **row.env}


def _ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in set(signal.Signals)
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kept(path: Path) -> str:
    """A log, or of a very long one its beginning and its end."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LOG_KEPT:
            found = file.read()
        else:
            found = file.read(LOG_KEPT // 4) + f"\n... {size} bytes in all ...\n".encode()
            file.seek(-3 * LOG_KEPT // 4, os.SEEK_END)
            found += file.read()
    return found.decode(errors="replace")


def as_json(result: Result) -> Mapping[str, Any]:
    """A result for the report: with its log where it failed."""
    cases = [vars(case) | {"seconds": round(case.seconds, 3)} for case in result.cases]
    told = vars(result) | {"seconds": round(result.seconds, 3), "cases": cases}
    if result.status == PASS or result.status == SKIP:
        del told["log"]
    return told
