"""One way to average gradients on a model, a step at a time: what a step takes and sends on this rank."""

from __future__ import annotations

import resource
import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.bench.replay import SPANS, Case, Replay
from dgc_repro.bench.rounds import Numbers
from dgc_repro.bench.world import interface
from dgc_repro.exchange.attached import Attached, attach
from dgc_repro.exchange.ddp import wrap
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.network import counters

WARMUP_STEPS = 5
"""DDP builds its buckets anew after the first step, torch's PowerSGD begins with the third."""
BYTES = ("payload_bytes", "wire_bytes", "total_wire_bytes")
POWERSGD_RANK = 4
ONE_BUCKET_MB = 1 << 20
"""torch's PowerSGD hook asks for collectives in callbacks, whose order differs between ranks: on gloo
it runs only where there is one bucket."""


class Runner:
    """A case on a replayed model of its own, ready to step. ``bucket_view``: of torch's own DDP."""

    def __init__(self, case: Case, model: Replay, *, bucket_view: bool = False) -> None:
        self.case, self.model = case, model
        self._start = torch.zeros((), requires_grad=True)
        self._interface = interface()
        self._attached: Attached | None = None
        self._hook: _CountedHook | None = None
        if case.compressor is not None:
            self._ddp = wrap(model, torch.device("cpu"))
            assert case.overlap is not None
            self._attached = attach(
                self._ddp, case.compressor, overlap=case.overlap, timeout_seconds=120.0
            )
            return
        self._ddp = DistributedDataParallel(
            model,
            gradient_as_bucket_view=bucket_view,
            bucket_cap_mb=ONE_BUCKET_MB if case.hook == "powersgd" else None,
        )
        if case.hook != "allreduce":
            self._hook = _CountedHook(case.hook)
            self._ddp.register_comm_hook(self._hook, _counted)

    def step(self) -> Numbers:
        """A step, all ranks beginning together. ``exposed_seconds``: from the end of backward to the end of
        the step; ``counter_bytes``: sent by a lab's interface, the barrier before the step included."""
        sent, counted = self._sent(), self._counter()
        self._ddp.zero_grad(set_to_none=True)
        dist.barrier()
        begin, used = time.perf_counter(), processor_seconds()
        self._ddp(self._start).mean().backward()
        backward_over = time.perf_counter()
        if self._attached is not None:
            self._attached.step()
        end, used = time.perf_counter(), processor_seconds() - used
        spans = self._attached._exchange.link.clock.report() if self._attached is not None else {}
        return {
            "seconds": end - begin,
            "processor_seconds": used,
            "exposed_seconds": end - backward_over,
            **{f"{span}_ms": spans.get(f"time/{span}_ms", 0.0) for span in SPANS},
            **self._new(sent),
            "counter_bytes": self._counter() - counted,
        }

    def compute(self) -> Numbers:
        """Forward and backward alone."""
        self._ddp.zero_grad(set_to_none=True)
        dist.barrier()
        begin = time.perf_counter()
        with self._ddp.no_sync():
            self._ddp(self._start).mean().backward()
        return {"seconds": time.perf_counter() - begin}

    def close(self) -> None:
        """Let go of what the case keeps: the next one needs the memory."""
        if self._attached is not None:
            self._attached.close()

    def _counter(self) -> int:
        return counters.read(self._interface).tx_bytes if self._interface else 0

    def _sent(self) -> Counter[str]:
        """The sums of our ledger; of torch's own nothing."""
        if self._attached is None:
            return Counter()
        metrics = self._attached.ledger.metrics()
        calls = self._attached.ledger.calls_by_collective().items()
        sums = {name: metrics[f"comm/{name}"] for name in BYTES}
        return Counter(sums | {f"calls {kind}": count for kind, count in calls})

    def _new(self, before: Counter[str]) -> dict[str, float]:
        """What a step has handed over."""
        if self._attached is not None:
            after = self._sent()
            return {name: after[name] - before[name] for name in after}
        if self._hook is not None:
            sent, self._hook.sent = self._hook.sent, Counter()
            return allreduced(sent["bytes"], sent["calls"])
        logged = self._ddp._get_ddp_logging_data()
        buckets = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "0")
        payload = sum(parameter.nbytes for parameter in self._ddp.parameters())
        return allreduced(payload, len(buckets.split(",")))


def allreduced(payload_bytes: float, calls: int) -> dict[str, float]:
    """What so many allreduces of these bytes together move."""
    moved = payload_bytes * moved_by("allreduce", dist.get_world_size())
    return dict(zip(BYTES, (payload_bytes, moved, moved), strict=True)) | {"calls allreduce": calls}


class _CountedHook:
    """One of torch's hooks, and what it has handed to allreduce since somebody looked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: Counter[str] = Counter()
        self._powersgd = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2
        )

    def __call__(self, bucket: Any) -> torch.futures.Future[Tensor]:
        if self.name == "fp16":
            self.sent.update(bytes=bucket.buffer().nbytes // 2, calls=1)
            return default_hooks.fp16_compress_hook(None, bucket)  # type: ignore[arg-type]
        before = self._powersgd.total_numel_after_compression
        future = powerSGD_hook.powerSGD_hook(self._powersgd, bucket)
        # Vectors in one allreduce, then the first factors of all matrices, then the second.
        sent = self._powersgd.total_numel_after_compression - before
        size = bucket.buffer().element_size() * (sent or bucket.buffer().numel())
        self.sent.update(bytes=size, calls=3 if sent else 1)
        return future


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def _counted(hook, bucket):  # type: ignore[no-untyped-def]
    return hook(bucket)


def processor_seconds() -> float:
    """Used by all threads of this process, gloo's too, but not by the kernel outside of its calls."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
