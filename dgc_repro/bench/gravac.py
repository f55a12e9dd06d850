"""What GraVAC costs by itself: a step of ResNet101 whose gradients are compressed once, probed, or
compressed twice.

Two gloo workers on loopback. A round is one real forward, backward and SGD step; the gradients that
it leaves are then exchanged in every way, each with residuals of its own, in an order that turns by one
each round. So all ways of a round have the same compute before them and the same gradients, and differences
inside a round are compared. Durations are the slower rank's.

``static``: one compression. ``GraVAC``: both factors by multi-level compression, energies, a small
allreduce, the decision, and the report of the step. ``twice``: the same with the second factor chosen
from the whole tensor again. The branch that is sent is fixed: a probe costs the same whatever follows, and
only ways that send the same can be compared.
"""

from __future__ import annotations

import gc
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.bench.replay import SPANS
from dgc_repro.bench.rounds import Numbers, Steps, rounds, timed
from dgc_repro.bench.tables import Bars, Row, Spread, Table
from dgc_repro.bench.world import PAIR, on_ranks, together
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.sparsifier import Sparsifier, select_all
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.signals import share
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.policy.factors import GEOMETRIC
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import Plan, StepReport

WIDTH, BATCH, REPEATS, QUICK_REPEATS = 64, 32, 15, 3
THETA_MIN, CANDIDATE = 10, 1000
AT_MOST_PERCENT = 10.0
"""Of a step with static theta_min: what GraVAC may add to it, sending the same."""
AT_MOST_OF_TWO = 0.5
"""Of two compressions, each of the whole tensor: what GraVAC may take for its probe."""
WARMUP_ROUNDS = 3
NUM_CLASSES = 1000
METHODS: Mapping[str, type[DGCSampled] | type[TopK]] = {"DGC": DGCSampled, "top-k": TopK}
STATIC, GRAVAC, TWICE = "static", "GraVAC", "twice"
COMPUTE = "compute"
COLUMNS = {
    "exchange": "case",
    "step ms": "step_ms",
    "exchange ms": "exchange_ms",
    "over static ms": "extra_ms",
    "% of static's step": "extra_percent",
    "at most": "at_most",
    "verdict": "verdict",
    "of two compressions": "of_two",
    "at most ": "of_two_at_most",
    "verdict ": "of_two_verdict",
    "of what twice adds": "of_twice",
    **{f"{span} ms": f"{span}_ms" for span in SPANS},
    "MB handed over": "payload_mb",
}
BARS = Bars(
    "What GraVAC adds to a step",
    "% of a step with the static factor that is sent",
    {"over static": ("extra_percent", "at_most")},
    baseline=0.0,
)


def table(options: Namespace) -> Table:
    """Of `make bench`."""
    width = options.width or WIDTH
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    methods = ("DGC",) if options.quick else tuple(METHODS)
    about = (
        f"ResNet101 of width {width} (1000 classes, random images of 32x32, batch {BATCH}), "
        f"{PAIR} gloo workers on loopback, 1 thread each: real forward, backward and SGD, then "
        "the exchange of every tensor with error feedback after backward, signals included. Medians of "
        f"{repeats} rounds (middle half); in a round all ways exchange the same gradients. Factors "
        f"{THETA_MIN}x (theta_min) and {CANDIDATE}x (candidate). Over static: this way's step minus "
        "that of a static factor that sends the same, in one round. Of two compressions: that over the "
        "compress times of both static ways, error feedback and packing included. Twice: the candidate "
        "is chosen from the whole tensor again, else as GraVAC; of what twice adds: over the median of "
        f"what that adds. Targets: GraVAC adds at most {AT_MOST_PERCENT:g} % to a step with static "
        f"theta_min, and at most {AT_MOST_OF_TWO:g} of what two compressions take."
    )
    return Table(
        "gravac",
        "GraVAC's own cost",
        about,
        COLUMNS,
        lambda: rows(on_ranks(on_rank, methods, width, repeats)),
        10 + len(methods) * (WARMUP_ROUNDS + repeats) * (1 + 5 * (width / 64) ** 2),
        BARS,
    )


@dataclass(frozen=True)
class CompressesTwice(Ladder):
    """A ladder that chooses each candidate from the whole tensor, as if there were no other."""

    def _selections(self, batch: Batch, context: Context) -> dict[int, Selections]:
        found = {}
        for i in sorted(set(context.candidates)):
            rung = self.rungs[i]
            assert isinstance(rung, Sparsifier)
            found[i] = select_all(rung, batch, context.within(f"rung{i}"))
        return found


@dataclass
class Decides:
    """GraVAC as it is asked in a step, but for the branch that is sent: ``rung``, always."""

    rung: int
    policy: GraVAC = field(
        default_factory=lambda: GraVAC(
            theta_min=THETA_MIN,
            theta_max=CANDIDATE,
            scaling=GEOMETRIC,
            ratio=CANDIDATE / THETA_MIN,
            window=5,
            workers=PAIR,
        )
    )
    state: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Both factors on trial, and kept so.
        self.state = {**self.policy.init(), "candidate": 1, "frozen": True}

    def choose(self, energies: Tensor) -> int:
        _, self.state = self.policy.choose(self.state, energies)
        return self.rung


@dataclass
class Way:
    """One way to exchange a model's gradients, with states of its own."""

    name: str
    compressor: Compressor
    decides: Decides | None = None
    like: str = ""  # the static way that sends the same

    def open(self, parameters: Mapping[str, Tensor]) -> None:
        """Make its states."""
        device = torch.device("cpu")
        self.link = Link(ProcessGroupWire(device), Ledger(), Clock(device))
        choose = None if self.decides is None else self.decides.choose
        self.exchange = GradientExchange(self.compressor, parameters, self.link, choose=choose)

    def step(self, model: nn.Module) -> Numbers:
        """One exchange of copies of the model's gradients, begun together."""
        gradients = {
            name: parameter.grad.clone().contiguous()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        number, sent = self.exchange.step, self.link.ledger.payload_bytes
        plan, signals = Plan(0), [0.0] * 5
        together()
        begin = time.perf_counter()
        if self.decides is not None:
            plan = self.decides.policy.plan(self.decides.state, number)
            signals = [*signals, 0.0, 0.0]
        self.exchange.open(0, gradients, plan)
        share(self.link, signals)
        self.exchange.finish()
        self.exchange.commit()
        if self.decides is not None:
            report = StepReport(number, 1.0, 1.0)
            self.decides.state = self.decides.policy.after_step(self.decides.state, report)
        seconds = time.perf_counter() - begin
        self.link.clock.end_step(seconds)
        spans = self.link.clock.last
        return {
            "seconds": seconds,
            "compress_seconds": spans["compress"],
            **{f"{span}_ms": 1e3 * spans[span] for span in SPANS},
            "payload_bytes": self.link.ledger.payload_bytes - sent,
        }


def ways_of(method: str) -> list[Way]:
    """Static factors, GraVAC sending either, and compressing twice."""
    made = METHODS[method]
    weak, strong = made(factor=THETA_MIN), made(factor=CANDIDATE)
    rungs = (Dense(), weak, strong)
    weakly, strongly = f"{STATIC} {THETA_MIN}x", f"{STATIC} {CANDIDATE}x"
    return [
        Way(weakly, ErrorFeedback(weak)),
        Way(strongly, ErrorFeedback(strong)),
        Way(f"{GRAVAC}, sends {THETA_MIN}x", ErrorFeedback(Ladder(rungs)), Decides(1), weakly),
        Way(f"{GRAVAC}, sends {CANDIDATE}x", ErrorFeedback(Ladder(rungs)), Decides(2), strongly),
        Way(
            f"{TWICE}, sends {THETA_MIN}x",
            ErrorFeedback(CompressesTwice(rungs)),
            Decides(1),
            weakly,
        ),
    ]


def on_rank(methods: Sequence[str], width: int, repeats: int) -> dict[str, Steps]:
    """Each method's compute and ways, round by round."""
    found = {}
    for method in methods:
        found[method] = _measured(ways_of(method), width, repeats)
        gc.collect()
    return found


def _measured(ways: Sequence[Way], width: int, repeats: int) -> Steps:
    torch.manual_seed(dist.get_rank())
    model = ResNet101(width=width).build(NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    for way in ways:
        way.open(parameters)
    steps = {COMPUTE: timed(partial(_train, model, optimizer))}
    return rounds(
        steps | {way.name: partial(way.step, model) for way in ways}, repeats, WARMUP_ROUNDS
    )


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Forward, backward and an SGD step on random images."""
    images = torch.randn(BATCH, 3, 32, 32)
    targets = torch.randint(NUM_CLASSES, (BATCH,))
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(images), targets).backward()
    optimizer.step()


def rows(found: Mapping[str, Steps]) -> list[Row]:
    """A row a method and way."""
    return [_row(method, way, steps) for method, steps in found.items() for way in ways_of(method)]


def _row(method: str, way: Way, steps: Steps) -> Row:
    compute, own = steps[COMPUTE]["seconds"], steps[way.name]
    took = own["seconds"]
    row: dict[str, Any] = {"case": f"{method}: {way.name}"}
    row |= Spread.of(1e3 * (compute + took)).columns("step_ms")
    row |= Spread.of(1e3 * took).columns("exchange_ms")
    row |= {f"{span}_ms": float(own[f"{span}_ms"].mean()) for span in SPANS}
    row |= {"payload_mb": float(own["payload_bytes"].mean()) / 1e6}
    row |= {"verdict": "", "of_two_verdict": ""}
    if not way.like:
        return row
    static = steps[way.like]["seconds"]
    extra = took - static  # than the static way that sends the same, by round
    percent = Spread.of(100 * extra / (compute + static))
    row |= Spread.of(1e3 * extra).columns("extra_ms") | percent.columns("extra_percent")
    if not way.name.startswith(GRAVAC):
        return row
    both = sum(steps[f"{STATIC} {f}x"]["compress_seconds"] for f in (THETA_MIN, CANDIDATE))
    part = Spread.of(extra / both)
    row |= part.columns("of_two")
    twice = way.name.replace(GRAVAC, TWICE)
    if twice not in steps:
        return row
    row |= {"at_most": AT_MOST_PERCENT, "verdict": percent.verdict(AT_MOST_PERCENT)}
    row |= {"of_two_at_most": AT_MOST_OF_TWO, "of_two_verdict": part.verdict(AT_MOST_OF_TWO)}
    if (whole := np.median(steps[twice]["seconds"] - static)) > 0:
        row |= Spread.of(extra / whole).columns("of_twice")
    return row
