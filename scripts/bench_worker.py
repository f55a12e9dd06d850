"""The exchange of ResNet18's gradients, measured: what each rank of the benchmark does.

Every case has a DDP model of its own. A case's step always follows a step of plain DDP: the pair's
ratio is the measurement. Durations are the slower rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import bench_layers
import torch
import torch.distributed as dist
from bench_exchange import CASES, Plan, rows
from bench_measure import Row
from bench_ranks import on_ranks
from torch import Tensor

from dgc_repro.launch.replay_rank import WARMUP_STEPS, Runner, Step
from dgc_repro.measure.replay import Replay
from dgc_repro.model.resnet18 import ResNet18

NUM_CLASSES = 10


def measure(plan: Plan) -> tuple[list[Row], list[Row]]:
    """One row a case; and, where they were asked for, the rows of `bench_layers`. Raises RanksFailed."""
    found = on_ranks(on_rank, plan, seconds=plan.timeout_seconds)
    return rows(found), bench_layers.rows(found.get("layers", {}))


def on_rank(plan: Plan) -> dict[str, Any]:
    """All that is asked for, on this rank."""
    found: dict[str, Any] = {"replay": timed(list(replays(plan)), plan.repeats, WARMUP_STEPS)}
    if plan.whole_step_repeats:
        found["whole"] = timed(list(whole_steps(plan)), plan.whole_step_repeats, 1)
    if plan.layer_repeats:
        found["layers"] = bench_layers.measure(plan.layer_repeats)
    return found


def replays(plan: Plan) -> Iterator[Runner]:
    """Exchange only: backward hands out gradients at once."""
    shapes = resnet18_shapes(plan.width)
    start = torch.zeros((), requires_grad=True)
    for case in CASES:  # gradients of its own: plain DDP writes means into them
        model = Replay(heavy_tailed(shapes, seed=dist.get_rank()))
        yield Runner(case, model, lambda: start, bucket_view=case.bucket_view)


def whole_steps(plan: Plan) -> Iterator[Runner]:
    """Forward, backward, exchange, SGD."""
    images = torch.randn(plan.batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    for case in CASES:
        torch.manual_seed(0)
        channels_last: Any = torch.channels_last  # the stubs lack this argument of `to`
        model = ResNet18(width=plan.width).build(NUM_CLASSES).to(memory_format=channels_last)
        yield Runner(case, model, lambda: images, learns=True, bucket_view=case.bucket_view)


def resnet18_shapes(width: int) -> dict[str, torch.Size]:
    """The parameters of a ResNet18 with the CIFAR stem, by name, in order of registration."""
    with torch.device("meta"):
        model = ResNet18(width=width).build(NUM_CLASSES)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def heavy_tailed(shapes: Mapping[str, torch.Size], seed: int) -> dict[str, Tensor]:
    """Noise that looks as gradients do: normal values of log-normal scale."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        found[name] = noise.mul_(torch.randn(shape, generator=generator).exp_())
    return found


def timed(runners: list[Runner], repeats: int, warmup: int) -> dict[str, dict[str, Any]]:
    """For each case: pairs (plain DDP, the case) of wall seconds and of processor seconds,
    breakdown, bytes."""
    plain, *others = runners
    for runner in runners:
        for _ in range(warmup):
            runner.step()
    before = {runner.case.name: runner.sent()["payload_bytes"] for runner in others}
    pairs: dict[str, list[tuple[Step, Step]]] = {runner.case.name: [] for runner in others}
    for _ in range(repeats):
        for runner in others:
            pairs[runner.case.name].append((plain.step(), runner.step()))
    found = {}
    for runner in others:
        name = runner.case.name
        steps = [[[s.seconds, s.processor_seconds] for s in pair] for pair in pairs[name]]
        slower = torch.tensor(steps, dtype=torch.float64)  # f64[repeats, pair, 2]
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        sent = runner.sent()["payload_bytes"] - before[name]
        found[name] = {
            "seconds": slower[:, :, 0].tolist(),
            "processor_seconds": slower[:, :, 1].tolist(),
            "breakdown": mean_spans([ours for _, ours in pairs[name]]),
            "payload_bytes": None if runner.attached is None else sent / repeats,
        }
    return found


def mean_spans(steps: Sequence[Step]) -> dict[str, float]:
    """Mean milliseconds by kind, of this rank; of plain DDP nothing is known."""
    found: dict[str, list[float]] = {}
    for step in steps:
        for name, milliseconds in step.spans.items():
            found.setdefault(name, []).append(milliseconds)
    return {name: sum(values) / len(values) for name, values in found.items()}
