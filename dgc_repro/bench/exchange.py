"""The exchange of ResNet18's gradients between gloo workers, in multiples of a step of plain DDP.

`table` measures on loopback, `network_table` on shaped links (network/lab.py). Plain DDP is torch's own
allreduce with default settings. Ours is `dgc_repro.attach` as a user gets it, with its check for non-finite
gradients and that check's small allreduce. Every case has a DDP model of its own, whose backward hands out
heavy-tailed noise at once. All cases take turns: the ratio to plain DDP in the same round is the measurement.
Durations are the slower rank's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.rounds import Numbers, Steps, rounds
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.bench.world import PAIR, on_ranks
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.door import attach
from dgc_repro.exchange.hook import wrap
from dgc_repro.model.resnet18 import ResNet18
from dgc_repro.network.lab import Lab

WIDTH, NUM_CLASSES = 64, 10
REPEATS, QUICK_REPEATS, NETWORK_REPEATS = 40, 5, 5
WARMUP = 3
"""Steps: DDP makes its buckets anew after the first one, torch's PowerSGD begins with the third."""
SPANS = ("compress", "communicate", "decompress")
RATES = {"100 Mbit/s": 100e6, "1 Gbit/s": 1e9}
FP16_HOOK, POWERSGD_HOOK = "torch's fp16 hook", "torch's PowerSGD hook, rank 4"
TORCH_HOOKS: Mapping[str, Callable[[], tuple[Any, Callable[..., Any]]]] = {
    FP16_HOOK: lambda: (None, default_hooks.fp16_compress_hook),
    # Compressing from the third step on is the earliest that DDP allows.
    POWERSGD_HOOK: lambda: (
        powerSGD_hook.PowerSGDState(None, 4, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    ),
}
"""By name, what makes the state and the function of one of torch's communication hooks."""
ONE_BUCKET_MB = 1 << 20
"""torch's PowerSGD hook asks for collectives in callbacks, whose order differs between ranks: on gloo
it runs only where there is one bucket."""


@dataclass(frozen=True)
class Case:
    """A way to average gradients, and its target in steps of plain DDP: ``compressor``, or torch's DDP, with
    a hook where the name is one of `TORCH_HOOKS`. ``bucket_view``: of torch's DDP; ours always has it."""

    name: str
    compressor: Compressor | None = None
    overlap: bool = False
    bucket_view: bool = False
    at_most: float | None = None

    @property
    def key(self) -> str:
        """Its name in a table."""
        overlap = f", overlap={str(self.overlap).lower()}"
        return self.name + ("" if self.compressor is None else overlap)


PLAIN = Case("plain DDP")
BITS8, BITS4 = Uniform(8, block=2048), Uniform(4, block=512)
CASES = (
    Case("plain DDP, again"),  # how far from 1 the noise alone goes
    Case("plain DDP, gradient_as_bucket_view", bucket_view=True),
    Case("dense", Dense(), True, at_most=1.02),
    Case("8 bits, block 2048", BITS8, True),
    Case("4 bits, block 512", BITS4, True),
    Case("dense", Dense(), at_most=1.05),
    Case("8 bits, block 2048", BITS8),
    Case("4 bits, block 512", BITS4),
)
NETWORK_CASES = (
    *map(Case, TORCH_HOOKS),
    Case("fp16", FP16(), True),
    Case("8 bits", ErrorFeedback(BITS8), True),
    Case("4 bits", ErrorFeedback(BITS4), True),
    Case("top-k 1 %", ErrorFeedback(TopK(0.01)), True),
    Case("top-k 0.1 %", ErrorFeedback(TopK(0.001)), True),
    Case("DGC 0.1 %", ErrorFeedback(DGCSampled(0.001)), True),
    Case("random-k 1 %", ErrorFeedback(RandomK(0.01)), True),
    Case("PowerSGD rank 4", ErrorFeedback(PowerSGD(4)), True),
)
COLUMNS = {
    "exchange": "case",
    "x plain DDP": "step_x",
    "at most": "at_most",
    "verdict": "verdict",
    "step ms": "step_ms",
    **{f"{span} ms": f"{span}_ms" for span in SPANS},
    "MB handed over": "payload_mb",
}
NETWORK_COLUMNS = {
    "link": "link",
    "exchange": "case",
    "times as fast as plain DDP": "speedup",
    "step ms": "step_ms",
    "MB handed over": "payload_mb",
}


def table(quick: bool) -> Table:
    """On loopback, of `make bench`."""
    repeats = QUICK_REPEATS if quick else REPEATS
    about = (
        f"gradients of ResNet18 of width {WIDTH}, {PAIR} gloo workers on loopback, 1 thread each; backward "
        f"replayed; all exchanges in turns; median of {repeats} rounds (middle half). With "
        "overlap, buckets are compressed and their collectives begin while backward goes on. The check for "
        "non-finite gradients is in none of the spans, its allreduce in communicate."
    )
    seconds = 10 + 1.2 * repeats
    return Table("exchange", "Exchange", about, COLUMNS, partial(rows, CASES, repeats), seconds)


def network_table(quick: bool) -> Table:
    """On shaped links. Measuring raises UserError where this machine can have no lab."""
    repeats = 2 if quick else NETWORK_REPEATS
    about = (
        f"steps of ResNet18 of width {WIDTH}, {PAIR} gloo workers, 1 thread each, each with a shaped link of "
        "its own; backward takes no time; ours with overlap; torch's PowerSGD hook with one bucket. "
        f"Times as fast as plain DDP in the same round; median of {repeats} rounds (middle half). These are "
        "speedups of a step and say nothing about quality."
    )

    def measured() -> list[Row]:
        made: list[Row] = []
        for link, rate in RATES.items():
            with Lab([rate] * PAIR) as lab:
                made += [{"link": link, **row} for row in rows(NETWORK_CASES, repeats, lab)]
        return made

    title = "What compression is worth on shaped links"
    return Table("network", title, about, NETWORK_COLUMNS, measured, 60 + 13 * (repeats + WARMUP))


def rows(cases: Sequence[Case], repeats: int, lab: Lab | None = None) -> list[Row]:
    """A row a case, plain DDP first."""
    found: Steps = on_ranks(on_rank, (PLAIN, *cases), WIDTH, repeats, lab=lab)
    plain = found[PLAIN.key]["seconds"]
    made: list[Row] = []
    for case in (PLAIN, *cases):
        steps = found[case.key]
        step = Spread.of(steps["seconds"] / plain)
        row: dict[str, Any] = {"case": case.key, **step.columns("step_x")}
        row |= {"at_most": case.at_most, "verdict": step.verdict(case.at_most)}
        row |= Spread.of(plain / steps["seconds"]).columns("speedup")
        row |= Spread.of(1e3 * steps["seconds"]).columns("step_ms")
        if case.compressor is not None:
            row["payload_mb"] = float(steps["payload_bytes"].mean()) / 1e6
            row |= {f"{span}_ms": float(steps[f"{span}_ms"].mean()) for span in SPANS}
        made.append(row)
    return made


def on_rank(cases: Sequence[Case], width: int, repeats: int) -> Steps:
    """The steps of all cases, in rounds that begin with the first one."""
    return rounds({case.key: Runner(case, width).step for case in cases}, repeats)


class Runner:
    """A case on a model of its own, after its warm-up."""

    def __init__(self, case: Case, width: int) -> None:
        self._start = torch.zeros((), requires_grad=True)
        with torch.device("meta"):
            model = ResNet18(width=width).build(NUM_CLASSES)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        # Gradients of its own: plain DDP writes means into them.
        replay = Replay(gradients_of(shapes, dist.get_rank()))
        self._attached = None
        if case.compressor is not None:
            self._ddp = wrap(replay, torch.device("cpu"))
            self._attached = attach(self._ddp, case.compressor, overlap=case.overlap)
        else:
            self._ddp = DistributedDataParallel(
                replay,
                gradient_as_bucket_view=case.bucket_view,
                bucket_cap_mb=ONE_BUCKET_MB if case.name == POWERSGD_HOOK else None,
            )
        if case.name in TORCH_HOOKS:
            self._ddp.register_comm_hook(*TORCH_HOOKS[case.name]())
        for _ in range(WARMUP):
            self.step()
        gc.collect()

    def step(self) -> Numbers:
        """A step, all ranks beginning together."""
        self._ddp.zero_grad(set_to_none=True)
        sent = self._sent()
        dist.barrier()
        begin = time.perf_counter()
        self._ddp(self._start).mean().backward()
        spans: Mapping[str, float] = {}
        if self._attached is not None:
            spans = self._attached._exchange.world.clock.report()
        seconds = time.perf_counter() - begin
        return {
            "seconds": seconds,
            **{f"{span}_ms": spans.get(f"time/{span}_ms", 0.0) for span in SPANS},
            "payload_bytes": self._sent() - sent,
        }

    def _sent(self) -> float:
        """By the ledger; of torch's own nothing."""
        return 0.0 if self._attached is None else float(self._attached.ledger.payload_bytes)


class Replay(nn.Module):
    """Parameters like given gradients (f32, by name, in order of registration), whose backward hands these
    out at once. A DDP model without ``gradient_as_bucket_view`` writes their mean into them."""

    def __init__(self, gradients: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._gradients = list(gradients.values())
        self._like = nn.ParameterList([torch.zeros_like(one) for one in self._gradients])

    def forward(self, start: Tensor) -> Tensor:
        """``start`` as it is: f32[]."""
        through = start
        for parameter, gradient in zip(self._like, self._gradients, strict=True):
            through = _HandOut.apply(through, gradient, parameter)
        return through


class _HandOut(torch.autograd.Function):
    """Passes a number through; backward hands out a gradient."""

    @staticmethod
    def forward(ctx: Any, through: Tensor, gradient: Tensor, parameter: Tensor) -> Tensor:
        ctx.gradient = gradient
        return through.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # An alias: autograd takes a tensor that nobody else holds as it is, and copies another one.
        return gradients[0], None, ctx.gradient.detach()
