"""One persistent world of real gloo processes a size, for what only real processes can show.

A job is a function of a module that the processes can import; it is called with its arguments on
every rank, and what it returns comes back in rank order. Starting ranks costs seconds, so a world
lives as long as the session; a job that hangs or kills a rank ends this world, and the next job
gets a fresh one.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

IMPORTED = ["torch.distributed.fsdp", "dgc_repro.exchange.door", "dgc_repro.policy.gravac"]
JOB_SECONDS = 150.0
START_SECONDS = 240.0


class _Pickler(pickle.Pickler):
    """Writes a small tensor in a tenth of the time that torch's own way takes. Tensors that share storage
    share it after they are read."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self._storages: dict[tuple[int, int], bytearray] = {}

    def reducer_override(self, item: Any) -> Any:
        import torch

        if type(item) is not torch.Tensor or item.requires_grad or item.device.type != "cpu":
            return NotImplemented
        if item.layout != torch.strided or item.is_quantized or item.is_conj() or item.is_neg():
            return NotImplemented
        storage = item.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._storages:
            entries = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._storages[key] = bytearray(entries.numpy())
        values = self._storages[key]  # pickle writes one object once
        return _tensor, (values, item.dtype, item.storage_offset(), item.shape, item.stride())


def _tensor(values: bytearray, dtype: Any, *place: Any) -> Any:
    import torch

    entries = torch.frombuffer(values, dtype=torch.uint8) if values else torch.empty(0)
    return torch.empty(0, dtype=dtype).set_(entries.untyped_storage(), *place)


def _message(item: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(item)
    return file.getvalue()


class JobFailed(AssertionError):
    """A rank raised, died, or did not answer in time."""


def _serve(
    rank: int,
    size: int,
    rendezvous: str,
    pipe: Connection,
    environment: dict[str, str],
    seconds: float,
) -> None:
    """The life of a rank: answer jobs until the pipe closes. ``environment``: that of the process that starts
    the world; the server has the one of the first start. ``seconds``: the timeout of collectives."""
    os.environ.clear()
    os.environ.update(environment, GLOO_SOCKET_IFNAME="lo")
    import numpy as np
    import torch
    import torch.distributed as dist

    random.seed()  # not the state of the server that this process is a copy of: ranks draw apart
    np.random.seed()  # noqa: NPY002
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        timeout=timedelta(seconds=seconds),
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
    )
    pipe.send_bytes(pickle.dumps((True, rank)))
    while True:
        try:
            job, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            answer: tuple[bool, Any] = (True, job(*arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(_message(answer))
    os._exit(0)  # nothing to save, and gloo takes seconds to say goodbye


class World:
    """``size`` processes that have met and wait for jobs. ``seconds``: the timeout of their collectives."""

    def __init__(self, size: int, seconds: float = 1800.0) -> None:
        self.size = size
        self._seconds = seconds
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def __call__(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Every rank's result of ``job(*arguments)``, in rank order. Raises JobFailed."""
        if not self._processes:
            self._start()
        message = _message((job, arguments))
        try:
            for pipe in self._pipes:
                pipe.send_bytes(message)
            return self._collect(JOB_SECONDS)
        except JobFailed:
            raise  # every rank has answered, or the world has ended
        except BaseException:
            self._end()  # a timeout of the test: the next job would be given this one's answers
            raise

    def stop(self) -> None:
        """End the processes that were started here, and no others."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        if self._processes:
            self._folder.cleanup()
        self._processes, self._pipes = [], []

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        self.stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)  # once for the ranks of all worlds
        self._folder = tempfile.TemporaryDirectory()
        rendezvous = str(Path(self._folder.name) / "rendezvous")
        for rank in range(self.size):
            here, there = context.Pipe()
            given = (rank, self.size, rendezvous, there, dict(os.environ), self._seconds)
            process = context.Process(target=_serve, args=given, daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        self._collect(START_SECONDS)

    def _collect(self, seconds: float) -> list[Any]:
        answers, wrong = [], []
        until = time.monotonic() + seconds
        alive = True
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    wrong.append(f"rank {rank} did not answer within {seconds:g} s")
                    alive = False
                    continue
                good, answer = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                wrong.append(f"rank {rank} died")
                alive = False
                continue
            answers.append(answer)
            if not good:
                wrong.append(f"rank {rank}:\n{answer}")
        if not alive:
            self._end()
        if wrong:
            raise JobFailed("\n".join(wrong))
        return answers
