"""The exchange of ResNet18's gradients between two gloo workers, in multiples of plain DDP's.

Plain DDP is torch's own allreduce with default settings. Ours is `dgc_repro.attach` as a user gets
it, its check for non-finite gradients and that check's small allreduce included. Here is what is
measured and how it is shown; `bench_worker` measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench_measure import Row, Spread
from bench_ranks import WORLD_SIZE

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.measure.replay import SPANS
from dgc_repro.measure.replay import Case as Replayed

PLAIN = "plain DDP"


@dataclass(frozen=True)
class Case(Replayed):
    """A way to average gradients, and what is wanted of it; ``compressor`` None is torch's own."""

    bucket_view: bool = True  # of plain DDP; ours always has it
    at_most: float | None = None
    faster_than: str | None = None


def _ours() -> list[Case]:
    settings = {
        "dense": Dense(),
        "8 bits, block 2048": Uniform(8, block=2048),
        "4 bits, block 512": Uniform(4, block=512),
    }
    targets = {("dense", "per_bucket"): 1.15, ("dense", "after_backward"): 1.3}
    cases = []
    for junction in ("per_bucket", "after_backward"):
        weaker = None
        for setting, compressor in settings.items():
            name = f"{setting}, {junction}"
            at_most = targets.get((setting, junction))
            cases.append(Case(name, compressor, junction, at_most=at_most, faster_than=weaker))
            weaker = name
    return cases


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
    "whole step x plain DDP": "whole_step_x",
    "whole step ms": "whole_step_ms",
}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    width: int = 64
    repeats: int = 40
    whole_step_repeats: int = 3
    layer_repeats: int = 10
    batch: int = 32
    timeout_seconds: float = 300.0

    def describe(self) -> str:
        """For the head of the table."""
        whole = (
            f"; whole step: the real network, batch {self.batch}, {self.whole_step_repeats} repeats"
            if self.whole_step_repeats
            else ""
        )
        return (
            f"gradients of ResNet18 of width {self.width}, {WORLD_SIZE} gloo workers on loopback, "
            f"1 thread each; backward replayed; each step right after one of plain DDP; median of "
            f"{self.repeats} repeats (middle half){whole}. Per bucket, the spans of the "
            "communication thread overlap with backward; the look for non-finite gradients is part of "
            "the kernels that read every value, its allreduce of communicate. Processor time: of the "
            "worker's threads; waiting is not in it, and it suffers less from other work."
        )


def rows(found: Mapping[str, Any]) -> list[Row]:
    """What the workers found, as rows of the table: plain DDP first."""
    replay, whole = found["replay"], found.get("whole", {})
    plain_ms = Spread.of([1e3 * plain for case in replay.values() for plain, _ in case["seconds"]])
    table: list[Row] = [
        {
            **dict.fromkeys(_empty(), None),
            "case": PLAIN,
            "step_x": 1.0,
            "processor_x": 1.0,
            **plain_ms.columns("step_ms"),
        }
    ]
    if whole:
        table[0] = {
            **table[0],
            "whole_step_x": 1.0,
            "whole_step_ms": _whole_ms(whole.values(), 0).median,
        }
    return table + [_row(case, replay, whole) for case in CASES[1:]]


def _row(case: Case, replay: Mapping[str, Any], whole: Mapping[str, Any]) -> Row:
    measured = replay[case.name]
    ratio = Spread.of(_ratios(measured))
    row: dict[str, str | float | None] = dict.fromkeys(_empty(), None)
    row |= {"case": case.name, **ratio.columns("step_x")}
    row |= {"at_most": case.at_most, "verdict": ratio.verdict(case.at_most)}
    row |= Spread.of([1e3 * ours for _, ours in measured["seconds"]]).columns("step_ms")
    row |= Spread.of(_ratios(measured, "processor_seconds")).columns("processor_x")
    row |= {f"{span}_ms": measured["breakdown"].get(f"time/{span}_ms") for span in SPANS}
    if measured["payload_bytes"] is not None:
        row["payload_mb"] = measured["payload_bytes"] / 1e6
    if case.faster_than is not None:
        # Both are ratios to a plain step right before them, in the same round.
        weaker = _ratios(replay[case.faster_than])
        quotients = [w / o for w, o in zip(weaker, _ratios(measured), strict=True)]
        slowdown = Spread.of([1 / quotient for quotient in quotients])
        row |= Spread.of(quotients).columns("gain_x")
        row["gain_verdict"] = slowdown.verdict(1.0)
    if whole:
        row |= Spread.of(_ratios(whole[case.name])).columns("whole_step_x")
        row["whole_step_ms"] = _whole_ms([whole[case.name]], 1).median
    return row


def _ratios(measured: Mapping[str, Any], what: str = "seconds") -> list[float]:
    return [ours / plain for plain, ours in measured[what]]


def _whole_ms(cases: Any, which: int) -> Spread:
    return Spread.of([1e3 * pair[which] for case in cases for pair in case["seconds"]])


def _empty() -> list[str]:
    """All columns of the file, so that every row has them in one order."""
    spreads = ("step_x", "step_ms", "processor_x", "gain_x", "whole_step_x")
    names: list[str] = []
    for key in COLUMNS.values():
        names += [key, f"{key}_q1", f"{key}_q3"] if key in spreads else [key]
    return names
