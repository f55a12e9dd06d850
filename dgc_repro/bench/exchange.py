"""The exchange of ResNet18's gradients between two gloo workers, in multiples of plain DDP's.

Plain DDP is torch's own allreduce with default settings. Ours is `dgc_repro.attach` as a user gets
it, its check for non-finite gradients and that check's small allreduce included. Every case has a DDP
model of its own, and each of its steps follows a step of plain DDP: the pair's ratio is the measurement.
Durations are the slower rank's.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.replay import SPANS, Case, Replay
from dgc_repro.bench.rounds import Steps, rounds, spread_out
from dgc_repro.bench.runner import WARMUP_STEPS, Runner
from dgc_repro.bench.tables import Bars, Row, Spread, Table
from dgc_repro.bench.world import PAIR, on_ranks
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.model.resnet18 import ResNet18

WIDTH, REPEATS, QUICK_REPEATS = 64, 40, 5
NUM_CLASSES = 10


@dataclass(frozen=True)
class Timed:
    """A way to average gradients, and its target in steps of plain DDP."""

    case: Case
    at_most: float | None = None
    bucket_view: bool = False  # of plain DDP; ours always has it


PLAIN = Case("plain DDP")
CASES = (
    Timed(Case("plain DDP, again")),  # how far from 1 the noise alone goes
    Timed(Case("plain DDP, gradient_as_bucket_view"), bucket_view=True),
    Timed(Case("dense", Dense(), True), 1.02),
    Timed(Case("8 bits, block 2048", Uniform(8, block=2048), True)),
    Timed(Case("4 bits, block 512", Uniform(4, block=512), True)),
    Timed(Case("dense", Dense(), False), 1.05),
    Timed(Case("8 bits, block 2048", Uniform(8, block=2048), False)),
    Timed(Case("4 bits, block 512", Uniform(4, block=512), False)),
)
COLUMNS = {
    "exchange": "case",
    "x plain DDP": "step_x",
    "at most": "at_most",
    "verdict": "verdict",
    "step ms": "step_ms",
    "x its processor time": "processor_x",
    **{f"{span} ms": f"{span}_ms" for span in SPANS},
    "MB handed over": "payload_mb",
}
BARS = Bars("Exchange", "multiples of plain DDP's step", {"step": ("step_x", "at_most")})


def table(options: Namespace) -> Table:
    """Of `make bench`."""
    width = options.width or WIDTH
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    about = (
        f"gradients of ResNet18 of width {width}, {PAIR} gloo workers on loopback, 1 thread each; backward "
        f"replayed; each step right after one of plain DDP; median of {repeats} repeats (middle half). With "
        "overlap, the spans of the communication thread overlap with backward; the check for non-finite "
        "gradients is part of the kernels that read every value, its allreduce of communicate. Processor "
        "time: of the worker's threads, without waiting; other work on the machine disturbs it less."
    )
    return Table(
        "exchange",
        "Exchange",
        about,
        COLUMNS,
        lambda: rows(on_ranks(on_rank, width, repeats)),
        10 + 1.2 * (width / 64) ** 2 * repeats,
        BARS,
    )


def on_rank(width: int, repeats: int) -> dict[str, Steps]:
    """Each case's steps beside plain DDP's. Backward hands out heavy-tailed noise at once."""
    with torch.device("meta"):
        model = ResNet18(width=width).build(NUM_CLASSES)

    def runner(case: Case, *, bucket_view: bool = False) -> Runner:
        """With gradients of its own: plain DDP writes means into them."""
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        gradients = gradients_of(shapes, dist.get_rank())
        made = Runner(case, Replay(gradients), bucket_view=bucket_view)
        for _ in range(WARMUP_STEPS):
            made.step()
        return made

    plain = runner(PLAIN)
    runners = [runner(one.case, bucket_view=one.bucket_view) for one in CASES]
    cases = {
        one.case.key: partial(rounds, {PLAIN.key: plain.step, one.case.key: one.step})
        for one in runners
    }
    return spread_out(cases, repeats)


def rows(found: Mapping[str, Steps]) -> list[Row]:
    """Plain DDP, then a row a case."""
    plain = [1e3 * s for steps in found.values() for s in steps[PLAIN.key]["seconds"]]
    first = {"case": PLAIN.key, "step_x": 1.0, "processor_x": 1.0}
    return [
        first | Spread.of(plain).columns("step_ms"),
        *(_row(one, found[one.case.key]) for one in CASES),
    ]


def _row(one: Timed, found: Steps) -> Row:
    steps, plain = found[one.case.key], found[PLAIN.key]
    step = Spread.of(steps["seconds"] / plain["seconds"])
    row = {"case": one.case.key, **step.columns("step_x")}
    row |= {"at_most": one.at_most, "verdict": step.verdict(one.at_most)}
    row |= Spread.of(1e3 * steps["seconds"]).columns("step_ms")
    processor = steps["processor_seconds"] / plain["processor_seconds"]
    row |= Spread.of(processor).columns("processor_x")
    if one.case.compressor is not None:
        row |= {f"{span}_ms": float(steps[f"{span}_ms"].mean()) for span in SPANS}
        row["payload_mb"] = float(steps["payload_bytes"].mean()) / 1e6
    return row
