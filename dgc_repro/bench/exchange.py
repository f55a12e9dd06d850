"""The exchange of ResNet18's gradients between two gloo workers, in multiples of plain DDP's.

Plain DDP is torch's own allreduce with default settings. Ours is `dgc_repro.attach` as a user gets
it, its check for non-finite gradients and that check's small allreduce included. Every case has a DDP
model of its own, and each of its steps follows a step of plain DDP: the pair's ratio is the measurement.
Durations are the slower rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dgc_repro.bench import layers
from dgc_repro.bench.rank import WARMUP_STEPS, Runner, Step
from dgc_repro.bench.ranks import PAIR, on_pair
from dgc_repro.bench.replay import SPANS, Replay
from dgc_repro.bench.replay import Case as Replayed
from dgc_repro.bench.tables import Row, Spread
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.model.resnet18 import ResNet18

PLAIN = "plain DDP"
NUM_CLASSES = 10


@dataclass(frozen=True)
class Case(Replayed):
    """A way to average gradients, and its targets; ``compressor`` None is torch's own."""

    bucket_view: bool = True  # of plain DDP; ours always has it
    at_most: float | None = None
    faster_than: str | None = None


def _ours() -> Iterator[Case]:
    settings: dict[str, Compressor] = {
        "dense": Dense(),
        "8 bits, block 2048": Uniform(8, block=2048),
        "4 bits, block 512": Uniform(4, block=512),
    }
    targets = {("dense", "per_bucket"): 1.15, ("dense", "after_backward"): 1.3}
    for junction in ("per_bucket", "after_backward"):
        weaker = None
        for setting, compressor in settings.items():
            name = f"{setting}, {junction}"
            at_most = targets.get((setting, junction))
            yield Case(name, compressor, junction, at_most=at_most, faster_than=weaker)
            weaker = name


CASES = (
    Case(PLAIN, bucket_view=False),
    Case("plain DDP, again", bucket_view=False),  # how far from 1 the noise alone goes
    Case("plain DDP, gradient_as_bucket_view"),
    *_ours(),
)
COLUMNS = {
    "exchange": "case",
    "x plain DDP": "step_x",
    "at most": "at_most",
    "verdict": "verdict",
    "step ms": "step_ms",
    "x its processor time": "processor_x",
    "compress ms": "compress_ms",
    "communicate ms": "communicate_ms",
    "decompress ms": "decompress_ms",
    "faster than the row above by": "gain_x",
    "verdict ": "gain_verdict",
    "MB handed over": "payload_mb",
}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    width: int = 64
    repeats: int = 40
    layer_repeats: int = 10
    timeout_seconds: float = 600.0

    @property
    def expected_seconds(self) -> float:
        """About, on two cores (AMD EPYC)."""
        size = (self.width / 64) ** 2
        return 10 + 1.2 * size * self.repeats + 12 * self.layer_repeats

    def describe(self) -> str:
        """For the head of the table."""
        return (
            f"gradients of ResNet18 of width {self.width}, {PAIR} gloo workers on loopback, "
            f"1 thread each; backward replayed; each step right after one of plain DDP; median of "
            f"{self.repeats} repeats (middle half). Per bucket, the spans of the "
            "communication thread overlap with backward; the check for non-finite gradients is part of "
            "the kernels that read every value, its allreduce of communicate. Processor time: of the "
            "worker's threads; waiting is not in it, and it suffers less from other work."
        )


def measure(plan: Plan) -> tuple[list[Row], list[Row]]:
    """One row a case; and, where they were asked for, the rows of `layers`. Raises RanksFailed."""
    found = on_pair(on_rank, plan, seconds=plan.timeout_seconds)
    return rows(found), layers.rows(found.get("layers", {}))


def on_rank(plan: Plan) -> dict[str, Any]:
    """All measurements of this rank."""
    found: dict[str, Any] = {"replay": timed(list(replays(plan)), plan.repeats, WARMUP_STEPS)}
    if plan.layer_repeats:
        found["layers"] = layers.measure(plan.layer_repeats)
    return found


def replays(plan: Plan) -> Iterator[Runner]:
    """Exchange only: backward hands out heavy-tailed noise at once."""
    with torch.device("meta"):
        model = ResNet18(width=plan.width).build(NUM_CLASSES)
    start = torch.zeros((), requires_grad=True)
    for case in CASES:  # gradients of its own: plain DDP writes means into them
        generator = torch.Generator().manual_seed(dist.get_rank())
        gradients: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            gradients[name] = noise.mul_(torch.randn(noise.shape, generator=generator).exp_())
        yield Runner(case, Replay(gradients), lambda: start, bucket_view=case.bucket_view)


def timed(runners: Sequence[Runner], repeats: int, warmup: int) -> dict[str, dict[str, Any]]:
    """For each case: pairs (plain DDP, the case) of wall seconds and of processor seconds, mean spans
    in milliseconds, bytes."""
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
        spans = [ours.spans for _, ours in pairs[name]]
        found[name] = {
            "seconds": slower[:, :, 0].tolist(),
            "processor_seconds": slower[:, :, 1].tolist(),
            "spans": {key: sum(s[key] for s in spans) / len(spans) for key in spans[0]},
            "payload_bytes": None if runner.attached is None else sent / repeats,
        }
    return found


def rows(found: Mapping[str, Any]) -> list[Row]:
    """What the workers found, as rows of the table: plain DDP first."""
    replay = found["replay"]
    steps = [1e3 * plain for case in replay.values() for plain, _ in case["seconds"]]
    plain: dict[str, Any] = {"case": PLAIN, "step_x": 1.0, "processor_x": 1.0}
    plain |= Spread.of(steps).columns("step_ms")
    return [plain, *(_row(case, replay) for case in CASES[1:])]


def _row(case: Case, replay: Mapping[str, Any]) -> Row:
    measured = replay[case.name]
    ratios = _ratios(measured)
    step = Spread.of(ratios)
    row: dict[str, Any] = {"case": case.name, **step.columns("step_x")}
    row |= {"at_most": case.at_most, "verdict": step.verdict(case.at_most)}
    row |= Spread.of([1e3 * ours for _, ours in measured["seconds"]]).columns("step_ms")
    row |= Spread.of(_ratios(measured, "processor_seconds")).columns("processor_x")
    row |= {f"{span}_ms": measured["spans"].get(f"time/{span}_ms") for span in SPANS}
    if measured["payload_bytes"] is not None:
        row["payload_mb"] = measured["payload_bytes"] / 1e6
    if case.faster_than is not None:
        # Both are ratios to a plain step right before them, in the same round.
        weaker = _ratios(replay[case.faster_than])
        quotients = [w / o for w, o in zip(weaker, ratios, strict=True)]
        row |= Spread.of(quotients).columns("gain_x")
        row["gain_verdict"] = Spread.of([1 / quotient for quotient in quotients]).verdict(1.0)
    return row


def _ratios(measured: Mapping[str, Any], what: str = "seconds") -> list[float]:
    return [ours / plain for plain, ours in measured[what]]
