"""One rank of the exchange benchmark; `bench_exchange` starts two of them.

Every case has a DDP model of its own. A case's step always follows a step of plain DDP: the pair's
ratio is the measurement. Durations are the slower rank's.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench_exchange import CASES, Case, Plan
from bench_replay import NUM_CLASSES, Replay, resnet18_shapes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.exchange.ddp import Attached, attach
from dgc_repro.model.resnet18 import ResNet18

WARMUP_STEPS = 5  # DDP builds its buckets anew after the first; kernels compile in the next


class Runner:
    """One case, ready to step."""

    def __init__(
        self, case: Case, model: nn.Module, batch: Callable[[], Any], *, learns: bool
    ) -> None:
        self.case = case
        self._batch = batch
        options: dict[str, Any] = {"gradient_as_bucket_view": case.bucket_view}
        if case.compressor is not None:
            options["broadcast_buffers"] = False  # as train/ wraps its models
        self._ddp = DistributedDataParallel(model, **options)
        self.attached: Attached | None = None
        if case.compressor is not None:
            self.attached = attach(
                self._ddp, case.compressor, junction=case.junction, timeout_seconds=120
            )
        self._optimizer = torch.optim.SGD(self._ddp.parameters(), lr=1e-3) if learns else None

    def seconds(self) -> float:
        """Wall time of one step of this rank, begun together."""
        inputs = self._batch()
        self._ddp.zero_grad(set_to_none=True)
        dist.barrier()
        begin = time.perf_counter()
        self._ddp(inputs).mean().backward()
        if self.attached is not None:
            self.attached.step()
        if self._optimizer is not None:
            self._optimizer.step()
        return time.perf_counter() - begin

    def breakdown(self) -> dict[str, float]:
        """Mean milliseconds a step by kind since the last call, of this rank."""
        if self.attached is None:
            return {}
        return self.attached._exchange.link.clock.report()

    def payload_bytes_per_step(self) -> float | None:
        """What this rank hands over for its gradients, a step."""
        if self.attached is None:
            return None
        return self.attached.ledger.payload_bytes / self.attached._exchange.step


def replays(plan: Plan) -> Iterator[Runner]:
    """Exchange only."""
    shapes = resnet18_shapes(plan.width)
    start = torch.zeros((), requires_grad=True)
    for case in CASES:
        model = Replay(shapes, seed=dist.get_rank())
        yield Runner(case, model, lambda: start, learns=False)


def whole_steps(plan: Plan) -> Iterator[Runner]:
    """Forward, backward, exchange, SGD."""
    images = torch.randn(plan.batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for case in CASES:
        torch.manual_seed(0)
        model = ResNet18(width=plan.width).build(NUM_CLASSES)
        channels_last: Any = torch.channels_last  # the stubs lack this argument of `to`
        yield Runner(case, model.to(memory_format=channels_last), lambda: images, learns=True)


def measure(runners: list[Runner], repeats: int, warmup: int) -> dict[str, dict[str, Any]]:
    """For each case: pairs of seconds (plain DDP, the case), breakdown, bytes."""
    plain, *others = runners
    for runner in runners:
        for _ in range(warmup):
            runner.seconds()
        runner.breakdown()
    pairs: dict[str, list[list[float]]] = {runner.case.name: [] for runner in others}
    for _ in range(repeats):
        for runner in others:
            pairs[runner.case.name].append([plain.seconds(), runner.seconds()])
    slower = {name: torch.tensor(seconds, dtype=torch.float64) for name, seconds in pairs.items()}
    for seconds in slower.values():
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return {
        runner.case.name: {
            "seconds": slower[runner.case.name].tolist(),
            "breakdown": runner.breakdown(),
            "payload_bytes": runner.payload_bytes_per_step(),
        }
        for runner in others
    }


def main(rank: int, world_size: int, folder: Path) -> None:
    """Measure, and let rank 0 write what was found."""
    plan = Plan(**json.loads((folder / "plan.json").read_text()))
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world_size)
    timeout = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    found = {"replay": measure(list(replays(plan)), plan.repeats, WARMUP_STEPS)}
    if plan.whole_step_repeats:
        found["whole"] = measure(list(whole_steps(plan)), plan.whole_step_repeats, 1)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
