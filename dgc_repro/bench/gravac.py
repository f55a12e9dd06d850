"""What GraVAC costs by itself: a step of ResNet101 whose gradients are compressed once, probed, or
compressed twice.

Two gloo workers on loopback. A round is one real forward, backward and SGD step; the gradients that
it leaves are then exchanged in every way, each with residuals of its own, in an order that turns by one
each round. So all ways of a round have the same compute before them and the same gradients, and what
is compared are differences inside a round. Durations are the slower rank's.

``static``: one compression. ``GraVAC``: both factors by multi-level compression, energies, a small
allreduce, the decision, and what is told of the step. ``twice``: the same with the second factor chosen
from the whole tensor again. Which branch is sent is set: a probe costs the same whatever follows from it,
and only ways that send the same can be compared.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from dgc_repro.bench.ranks import PAIR, on_pair
from dgc_repro.bench.replay import SPANS
from dgc_repro.bench.tables import Row, Spread
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.signals import share
from dgc_repro.exchange.wire import Link
from dgc_repro.kernel.select import Selection
from dgc_repro.model.resnet101 import ResNet101
from dgc_repro.policy.factors import GEOMETRIC
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import Plan as Rungs
from dgc_repro.policy.interface import StepReport

THETA_MIN, CANDIDATE = 10, 1000
AT_MOST_PERCENT = 10.0
"""Of a step with static theta_min: what GraVAC may add to it, sending the same."""
AT_MOST_OF_TWO = 0.5
"""Of two compressions, each of the whole tensor: what GraVAC may take for its probe."""
WARMUP_ROUNDS = 3
NUM_CLASSES = 1000
METHODS: Mapping[str, type[DGCSampled] | type[TopK]] = {"DGC": DGCSampled, "top-k": TopK}
STATIC, GRAVAC, TWICE = "static", "GraVAC", "twice"
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
    "compress ms": "compress_ms",
    "communicate ms": "communicate_ms",
    "decompress ms": "decompress_ms",
    "MB handed over": "payload_mb",
}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    width: int = 64
    batch: int = 32
    repeats: int = 15
    methods: Sequence[str] = tuple(METHODS)
    timeout_seconds: float = 600.0

    @property
    def expected_seconds(self) -> float:
        """About, on two cores (AMD EPYC)."""
        size = (self.width / 64) ** 2
        return 10 + len(self.methods) * (WARMUP_ROUNDS + self.repeats) * (1 + 5 * size)

    def describe(self) -> str:
        """For the head of the table."""
        return (
            f"ResNet101 of width {self.width} (1000 classes, random images of 32x32, batch {self.batch}), "
            f"{PAIR} gloo workers on loopback, 1 thread each: real forward, backward and SGD, then "
            "the exchange of every tensor with error feedback after backward, signals included. Medians of "
            f"{self.repeats} rounds (middle half); in a round all ways exchange the same gradients. Factors "
            f"{THETA_MIN}x (theta_min) and {CANDIDATE}x (candidate). Over static: this way's step minus "
            "that of a static factor that sends the same, in one round. Of two compressions: that over the "
            "compress times of both static ways, error feedback and packing included. Twice: the candidate "
            "is chosen from the whole tensor again, else as GraVAC; of what twice adds: over the median of "
            f"what that adds. Targets: GraVAC adds at most {AT_MOST_PERCENT:g} % to a step with static "
            f"theta_min, and at most {AT_MOST_OF_TWO:g} of what two compressions take."
        )


@dataclass(frozen=True)
class CompressesTwice(Ladder):
    """A ladder that chooses each candidate from the whole tensor, as if there were no other."""

    def _selections(self, tensor: Tensor, context: Context) -> dict[int, Selection]:
        found = {}
        for i in sorted(set(context.candidates)):
            rung = self.rungs[i]
            assert isinstance(rung, Sparsifier)
            found[i] = rung.select(tensor, context.within(f"rung{i}"))
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

    def seconds(self, gradients: Mapping[str, Tensor], step: int) -> tuple[float, float]:
        """Wall time of the exchange on this rank, begun together, and of it compressing. The gradients
        are given up."""
        plan, spoken = Rungs(0), [0.0] * 5
        dist.barrier()
        begin = time.perf_counter()
        if self.decides is not None:
            plan = self.decides.policy.plan(self.decides.state, step)
            spoken = [*spoken, 0.0, 0.0]
        self.exchange.open(0, gradients, plan)
        share(self.link, spoken)
        self.exchange.finish()
        self.exchange.commit()
        if self.decides is not None:
            told = StepReport(step, 1.0, 1.0)
            self.decides.state = self.decides.policy.after_step(self.decides.state, told)
        seconds = time.perf_counter() - begin
        self.link.clock.end_step(seconds)
        return seconds, self.link.clock.last["compress"]


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


def measure(plan: Plan) -> list[Row]:
    """One row a method and way. Raises RanksFailed."""
    return rows(on_pair(on_rank, plan, seconds=plan.timeout_seconds))


def on_rank(plan: Plan) -> dict[str, Any]:
    """By method: seconds of compute, and of each way's exchange, round by round; its spans and bytes."""
    found = {}
    for method in plan.methods:
        found[method] = _timed(plan, ways_of(method))
        gc.collect()
    return found


def _timed(plan: Plan, ways: list[Way]) -> dict[str, Any]:
    torch.manual_seed(dist.get_rank())
    model = ResNet101(width=plan.width).build(NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    for way in ways:
        way.open(parameters)
    table = []  # [rounds][compute, way by way, and of each compressing]
    for number in range(WARMUP_ROUNDS + plan.repeats):
        compute = _compute(model, optimizer, plan.batch)
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        seconds = {}
        for place in range(len(ways)):
            way = ways[(number + place) % len(ways)]
            given = {name: gradient.clone().contiguous() for name, gradient in gradients.items()}
            seconds[way.name] = way.seconds(given, number)
        if number >= WARMUP_ROUNDS:
            table.append([compute, *(seconds[way.name][i] for i in (0, 1) for way in ways)])
    slower = torch.tensor(table, dtype=torch.float64)
    dist.all_reduce(slower, dist.ReduceOp.MAX)
    columns = slower.T.tolist()
    return {
        "compute": columns[0],
        "ways": {
            way.name: {
                "like": way.like,
                "seconds": column,
                "compress": compress,
                "spans": way.link.clock.report(),
                "payload_bytes": way.link.ledger.payload_bytes / way.exchange.step,
            }
            for way, column, compress in zip(
                ways, columns[1 : 1 + len(ways)], columns[1 + len(ways) :], strict=True
            )
        },
    }


def _compute(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> float:
    """Seconds of forward, backward and an SGD step on random images, begun together."""
    images = torch.randn(batch, 3, 32, 32)
    targets = torch.randint(NUM_CLASSES, (batch,))
    dist.barrier()
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(images), targets).backward()
    optimizer.step()
    return time.perf_counter() - begin


def rows(found: Mapping[str, Any]) -> list[Row]:
    """What the workers found, as rows of the table."""
    return [
        _row(method, name, measured)
        for method, measured in found.items()
        for name in measured["ways"]
    ]


def _row(method: str, name: str, measured: Mapping[str, Any]) -> Row:
    compute, ways = np.array(measured["compute"]), measured["ways"]
    took = {each: np.array(way["seconds"]) for each, way in ways.items()}
    way = ways[name]
    row: dict[str, Any] = {"case": f"{method}: {name}"}
    row |= _spread(1e3 * (compute + took[name])).columns("step_ms")
    row |= _spread(1e3 * took[name]).columns("exchange_ms")
    row |= {f"{span}_ms": way["spans"].get(f"time/{span}_ms") for span in SPANS}
    row |= {"payload_mb": way["payload_bytes"] / 1e6, "verdict": "", "of_two_verdict": ""}
    if not way["like"]:
        return row
    extra = took[name] - took[way["like"]]  # than the static way that sends the same, by round
    share_ = _spread(100 * extra / (compute + took[way["like"]]))
    row |= _spread(1e3 * extra).columns("extra_ms") | share_.columns("extra_percent")
    if not name.startswith(GRAVAC):
        return row
    two = sum(np.array(way["compress"]) for way in ways.values() if not way["like"])
    part = _spread(extra / two)
    row |= part.columns("of_two")
    if way["like"].endswith(f" {THETA_MIN}x"):
        row |= {"at_most": AT_MOST_PERCENT, "verdict": share_.verdict(AT_MOST_PERCENT)}
        row |= {"of_two_at_most": AT_MOST_OF_TWO, "of_two_verdict": part.verdict(AT_MOST_OF_TWO)}
    twice = name.replace(GRAVAC, TWICE)
    if twice in ways and (whole := np.median(took[twice] - took[ways[twice]["like"]])) > 0:
        row |= _spread(extra / whole).columns("of_twice")
    return row


def _spread(values: Any) -> Spread:
    return Spread.of(values.tolist())
