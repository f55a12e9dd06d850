"""One rank of a replay: started by ranks.py, which sends its jobs through its standard input.

Jobs are pickled (name, arguments); every rank is told the same, does it, and answers through what
was its standard output. Whatever is printed goes to standard error, the rank's log.
"""

from __future__ import annotations

import datetime
import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.bench.alone import Exchanged, time_exchange
from dgc_repro.bench.replay import PER_BUCKET, SPANS, Case, Compute, Measured, Replay, pause
from dgc_repro.exchange.attached import Attached, attach
from dgc_repro.exchange.ddp import wrap
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.kernel import native
from dgc_repro.launch.parent import end_with_parent
from dgc_repro.network import counters

WARMUP_STEPS = (
    4  # DDP builds its buckets anew after the first, torch's PowerSGD begins with the third
)
BYTES = ("payload_bytes", "wire_bytes", "total_wire_bytes")
POWERSGD_RANK = 4
ONE_BUCKET_MB = 1 << 20
"""torch's PowerSGD hook asks for collectives in callbacks, whose order differs between ranks: on gloo
it runs only where there is one bucket."""


@dataclass
class Step:
    """What one step of one rank took; its spans in milliseconds."""

    seconds: float
    processor_seconds: float
    exposed_seconds: float
    spans: Mapping[str, float]


class Runner:
    """One case on a model of its own, ready to step. ``batch``: what the model is called with."""

    def __init__(
        self,
        case: Case,
        model: nn.Module,
        batch: Callable[[], Any],
        *,
        bucket_view: bool = False,
        timeout_seconds: float = 120.0,
    ) -> None:
        self.case, self.model = case, model
        self._batch = batch
        self.attached: Attached | None = None
        self._hook = _CountedHook(case.hook)
        self._ddp: DistributedDataParallel
        if case.compressor is not None:
            self._ddp = wrap(model, torch.device("cpu"))
            self.attached = attach(
                self._ddp,
                case.compressor,
                overlap=case.junction == PER_BUCKET,
                timeout_seconds=timeout_seconds,
            )
        else:
            self._ddp = DistributedDataParallel(
                model,
                gradient_as_bucket_view=bucket_view,
                bucket_cap_mb=ONE_BUCKET_MB if case.hook == "powersgd" else None,
            )
            if case.hook != "allreduce":
                self._ddp.register_comm_hook(self._hook, _counted)

    def step(self) -> Step:
        """All ranks begin together."""
        inputs = self._batch()
        self._ddp.zero_grad(set_to_none=True)
        dist.barrier()
        begin, used = time.perf_counter(), processor_seconds()
        self._ddp(inputs).mean().backward()
        backward_over = time.perf_counter()
        if self.attached is not None:
            self.attached.step()
        end = time.perf_counter()
        spans: dict[str, float] = {}
        if self.attached is not None:
            spans = self.attached._exchange.link.clock.report()
        return Step(end - begin, processor_seconds() - used, end - backward_over, spans)

    def compute_seconds(self) -> float:
        """Forward and backward alone."""
        inputs = self._batch()
        self._ddp.zero_grad(set_to_none=True)
        dist.barrier()
        begin = time.perf_counter()
        with self._ddp.no_sync():
            self._ddp(inputs).mean().backward()
        return time.perf_counter() - begin

    def sent(self) -> dict[str, float]:
        """What this rank has handed over since the start, of its gradients."""
        if self.attached is not None:
            ledger = self.attached.ledger
            metrics = ledger.metrics()
            calls = ledger.calls_by_collective()
            return {
                **{name: metrics[f"comm/{name}"] for name in BYTES},
                **{f"calls {kind}": float(count) for kind, count in calls.items()},
            }
        return allreduced(self._hook.payload_bytes, self._hook.calls)

    def plain_step(self) -> dict[str, float]:
        """A step of DDP without a hook: all gradients, an allreduce a bucket."""
        logged = self._ddp._get_ddp_logging_data()
        buckets = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "0")
        payload = float(sum(p.nbytes for p in self._ddp.parameters()))
        return allreduced(payload, len(buckets.split(",")))


def allreduced(payload_bytes: float, calls: int) -> dict[str, float]:
    """What so many allreduces of these bytes together move."""
    moved = payload_bytes * moved_by("allreduce", dist.get_world_size())
    return dict(zip(BYTES, (payload_bytes, moved, moved), strict=True)) | {
        "calls allreduce": float(calls)
    }


@dataclass
class _CountedHook:
    """One of torch's hooks, and what it has handed to allreduce."""

    name: str
    payload_bytes: float = 0.0
    calls: int = 0
    powersgd: Any = field(init=False, default=None)
    world: Any = None  # of the process group: the default one

    def __post_init__(self) -> None:
        if self.name == "powersgd":
            self.powersgd = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2
            )

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if self.name == "fp16":
            self.payload_bytes += bucket.buffer().nbytes / 2
            self.calls += 1
            return default_hooks.fp16_compress_hook(self.world, bucket)
        before = self.powersgd.total_numel_after_compression
        future = powerSGD_hook.powerSGD_hook(self.powersgd, bucket)
        # Vectors in one allreduce, then the first factors of all matrices, then the second.
        sent = self.powersgd.total_numel_after_compression - before
        self.payload_bytes += bucket.buffer().element_size() * (sent or bucket.buffer().numel())
        self.calls += 3 if sent else 1
        return future


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def _counted(hook, bucket):  # type: ignore[no-untyped-def]
    return hook(bucket)


def processor_seconds() -> float:
    """Used by all threads of this process, gloo's too; what the kernel does unasked is not in."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Rank:
    """What this rank has loaded and opened. Every public method is a job."""

    def __init__(self, interface: str | None, timeout_seconds: float) -> None:
        self._interface = interface
        self._timeout_seconds = timeout_seconds
        self._gradients: dict[str, Tensor] = {}
        self._shares: Mapping[str, float] = {}
        self._runners: dict[str, Runner] = {}

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of some module says on this rank."""
        return function(*arguments)

    def alone(self, case: Case, compute: Compute, workers: int, repeats: int) -> list[Exchanged]:
        """What this rank does for an exchange among so many, without a network, after backward; all ranks
        begin together, behind the sleep that compute is."""
        assert case.compressor is not None

        def before() -> None:
            dist.barrier()
            pause(compute.seconds)

        return time_exchange(
            case.compressor, self._gradients, workers, repeats=repeats, before=before
        )

    def computes(self, key: str, compute: Compute, repeats: int) -> list[float]:
        """Seconds of forward and backward of an open case, nothing exchanged; all ranks begin together."""
        runner = self._runners[key]
        assert isinstance(runner.model, Replay)
        runner.model.compute = compute
        return [runner.compute_seconds() for _ in range(1 + repeats)][1:]

    def load(self, folder: str, shares: Mapping[str, float]) -> int:
        """Take this rank's recorded gradients; how many values there are."""
        while self._runners:
            self.close(next(iter(self._runners)))
        self._gradients = torch.load(Path(folder) / f"worker-{dist.get_rank()}.pt")
        self._shares = shares
        return sum(gradient.numel() for gradient in self._gradients.values())

    def open(self, case: Case, warmup: int = WARMUP_STEPS) -> float:
        """Make a case ready; the seconds of its last warm-up step."""
        gradients = self._gradients
        if case.compressor is None:  # its means are written into what it is handed
            gradients = {name: gradient.clone() for name, gradient in gradients.items()}
        start = torch.zeros((), requires_grad=True)
        runner = Runner(
            case,
            Replay(gradients, self._shares),
            lambda: start,
            timeout_seconds=self._timeout_seconds,
        )
        self._runners[case.key] = runner
        more = case.hook == "powersgd"  # it begins with the third step
        return [runner.step().seconds for _ in range(warmup + more)][-1]

    def close(self, key: str) -> None:
        """Let go of a case, and of all that it has kept: the next one needs the memory."""
        attached = self._runners[key].attached
        if attached is not None:
            attached.close()
        del attached, self._runners[key]
        gc.collect()

    def steps(
        self, key: str, compute: Compute, repeats: int, settle: int = 0, beside: str | None = None
    ) -> Measured:
        """Time some steps of an open case, each right after one of ``beside``; ``settle`` steps of it go
        before and are not counted (the link has just changed its rate)."""
        runner = self._runners[key]
        other = self._runners[beside] if beside is not None else None
        for one in (runner, other):
            if one is not None and isinstance(one.model, Replay):
                one.model.compute = compute
        for _ in range(settle):
            runner.step()
        before, counted = runner.sent(), 0
        steps: list[Step] = []
        besides: list[float] = []
        for _ in range(repeats):
            if other is not None:
                besides.append(other.step().seconds)
            sent = self._tx_bytes()
            steps.append(runner.step())
            counted += self._tx_bytes() - sent
        return _measured(runner, before, steps, besides, counted / repeats if counted else None)

    def _tx_bytes(self) -> int:
        return counters.read(self._interface).tx_bytes if self._interface else 0


def _measured(
    runner: Runner,
    before: Mapping[str, float],
    steps: list[Step],
    besides: list[float],
    counted: float | None,
) -> Measured:
    after = runner.sent()
    each = {what: (after[what] - before.get(what, 0.0)) / len(steps) for what in after}
    if runner.case.compressor is None and runner.case.hook == "allreduce":
        each = runner.plain_step()
    more: dict[str, Any] = {name: each[name] for name in BYTES}
    for span in SPANS:
        more[f"{span}_ms"] = [step.spans.get(f"time/{span}_ms", 0.0) for step in steps]
    return Measured(
        seconds=[step.seconds for step in steps],
        beside_seconds=besides,
        processor_seconds=[step.processor_seconds for step in steps],
        exposed_seconds=[step.exposed_seconds for step in steps],
        **more,
        counter_bytes=counted,
        calls={w.removeprefix("calls "): n for w, n in each.items() if w.startswith("calls ")},
    )


def serve(jobs: Connection, answers: Connection, rank: Rank) -> None:
    """Do what comes until nothing comes any more."""
    while True:
        try:
            name, arguments = jobs.recv()
        except EOFError:
            return
        try:
            answers.send((True, getattr(rank, name)(*arguments)))
        except BaseException as error:
            traceback.print_exc()
            answers.send((False, f"{type(error).__name__}: {error}"))


def main() -> None:
    """``python -m dgc_repro.bench.rank <rank> <workers> <store> <interface or -> <seconds> <backend>``."""
    number, workers, store, interface, timeout, backend = sys.argv[1:]
    end_with_parent()  # in the middle of a job too, where nothing is read
    jobs, answers = Connection(os.dup(0)), Connection(os.dup(1))
    os.dup2(2, 1)  # what is printed goes to the log
    torch.set_num_threads(1)
    native.library()  # built now if it is not in the cache
    if backend == "nccl":
        torch.cuda.set_device(int(number))
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=int(number),
        world_size=int(workers),
        timeout=datetime.timedelta(seconds=float(timeout)),
    )
    answers.send((True, int(number)))
    serve(jobs, answers, Rank(None if interface == "-" else interface, float(timeout)))
    os._exit(0)  # nothing to save, and gloo takes seconds to say goodbye


if __name__ == "__main__":
    main()
