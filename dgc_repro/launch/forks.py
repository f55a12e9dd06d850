"""Simulated runs of one command after its first: each is forked from a server that has imported torch.

Importing torch and the rest takes 5 to 10 seconds of a core, more than the smallest runs train. The server
imports once, has one thread, and touches no GPU. A fork ends with the server, and the server with the
command. Only Linux can end them so; elsewhere every run is a new process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dgc_repro.launch.parent import end_with_parent

POLL_SECONDS = 0.05


class Forked:
    """A fork of the server, with those of subprocess.Popen's methods that a launcher needs. ``answers``: the
    pipe to which the server will write its exit code."""

    def __init__(self, pid: int, answers: int) -> None:
        self.pid, self._answers = pid, answers
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code (negative: a signal), None while it runs."""
        if self.returncode is None and _is_readable(self._answers, 0):
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            answer = _number(self._answers)
            self.returncode = -signal.SIGKILL if answer is None else answer
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Server:
    """Forks one worker at a time. All of them have the same ``environment``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", __name__, str(requests), str(answers), str(os.getpid())]
        # A server that cannot start is replaced by new processes; their logs hold the reason.
        self.process = subprocess.Popen(
            command, env=environment, pass_fds=(requests, answers), start_new_session=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(requests)
        os.close(answers)

    def start(self, folder: Path, log: Path, is_stopped: Callable[[], bool]) -> Forked | None:
        """A worker of a run folder, its errors appended to ``log``. None where the server has ended, or where
        the user stops the command while the server imports."""
        line = json.dumps([str(folder), str(log)]) + "\n"
        with contextlib.suppress(BrokenPipeError):
            os.write(self._requests, line.encode())
            while not _is_readable(self._answers, POLL_SECONDS):
                if is_stopped():
                    self.process.kill()
            if (pid := _number(self._answers)) is not None:
                return Forked(pid, self._answers)
        return None

    def close(self) -> None:
        """End the server. No fork of it may be running."""
        os.close(self._requests)
        os.close(self._answers)
        self.process.wait()


_servers: dict[tuple[Any, ...], Server | None] = {}


def server(environment: Mapping[str, str]) -> Server | None:
    """The server of this environment, working folder and code; None the first time it is asked for, because
    most commands make one run. There is at most one server."""
    if sys.platform != "linux":
        return None
    from dgc_repro.launch.agreement import (
        code_hash,
    )  # the server itself imports little before its torch

    key = (os.getpid(), os.getcwd(), code_hash(), *sorted(environment.items()))
    if key not in _servers:
        _servers[key] = None
    elif _servers[key] is None:
        for other in filter(None, _servers.values()):
            other.close()
        _servers.clear()
        _servers[key] = Server(environment)
    return _servers[key]


def _is_readable(file: int, seconds: float) -> bool:
    return bool(select.select([file], [], [], seconds)[0])


def _number(file: int) -> int | None:
    """The next line, a number; None at the end of the file."""
    text = b""
    while not text.endswith(b"\n"):
        if not (byte := os.read(file, 1)):
            return None
        text += byte
    return int(text)


def _lines(file: int) -> Iterator[str]:
    with os.fdopen(file, encoding="utf-8") as lines:
        yield from lines


def _work(folder: str, log: str, parent: int) -> NoReturn:
    """What a fork does."""
    from dgc_repro.launch.worker import main as work

    try:
        os.setsid()
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
        end_with_parent(signal.SIGTERM, parent)
        sys.argv = ["dgc_repro", folder]
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    """The server: a request a line, answered by the fork's process id and, later, its exit code."""
    requests, answers, parent = map(int, sys.argv[1:])
    end_with_parent(signal.SIGKILL, parent)
    import torch._dynamo  # noqa: F401  # which every optimizer loads

    import dgc_repro.launch.worker  # noqa: F401

    own = os.getpid()
    for line in _lines(requests):
        if (pid := os.fork()) == 0:
            folder, log = json.loads(line)
            _work(folder, log, own)
        os.write(answers, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
