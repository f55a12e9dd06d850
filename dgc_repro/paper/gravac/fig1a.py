"""GraVAC's figure 1a: throughput against cluster size relative to ideal, modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, of, percent, pivot
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, WORKERS
from dgc_repro.paper.gravac import studies as g
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import Verdict, judge

EFFICIENCY, SYNC, MESSAGES = "scaling efficiency", "communication of a step", "messages of a step"
COMPUTE = "compute of a step"
PER_STEP, BUCKETS, PER_TENSOR = "per step", "buckets", "per tensor"
DASHES = {PER_TENSOR: ":", BUCKETS: "--", PER_STEP: "-"}
COLUMNS = {
    "efficiency": (EFFICIENCY, ""),
    "sync_ms": (SYNC, *g.MODELLED_MS),
    "compute_ms": (COMPUTE, *g.MODELLED_MS),
    "messages": (MESSAGES, ""),
}
ALIKE = ("scale.name", "study.networks", "study.workers", "study.latencies")
ASSUMED = "compute times"


def place(series: str, workers: float = WORKERS) -> str:
    """The setting of a line at the network's own latency."""
    return f"{series}, N = {workers:g}"


WORDS = Template.read(__file__)
_scales = Check(EFFICIENCY, LSTM, RESNET101, above=1.0, setting=place(PER_STEP), ratio=True)
_latency = replace(_scales, greater=RESNET101, lesser=LSTM)
CLAIMS = (
    WORDS.claim("lstm", _scales, assumed=ASSUMED, workers=WORKERS),
    WORDS.claim("latency", _latency, assumed=ASSUMED, ours=True),
)


def network(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The network with its source, and the assumed compute times, for the head of a page."""
    computes = (f"{MODELS.get(r.row, r.row)} {r.setting('study.compute_ms', 0):g} ms" for r in runs)
    profiles = runs[0].setting("study.networks", {})
    return [
        ("sizes", "the paper's, at every scale"),
        ("network", "; ".join(f"{name}: {node['source']}" for name, node in profiles.items())),
        ("seconds", f"communication modelled; compute of a step assumed: {', '.join(computes)}"),
    ]


def order_flips_at(frame: pd.DataFrame) -> str:
    """At which compute times c ResNet101 has the LSTM's efficiency e, c / (c + sync) = e; "" without both."""

    def one(quantity: str, model: str, series: str = PER_STEP) -> float:
        return next(iter(of(frame, quantity, model, place(series))), math.nan)

    def tie(series: str) -> float:
        efficiency = one(EFFICIENCY, LSTM, series)
        return one(SYNC, RESNET101, series) * efficiency / (1 - efficiency)

    if math.isnan(tie(PER_STEP)):
        return ""
    return (
        f"the order flips at {tie(PER_STEP):.0f} ms of compute of ResNet101 (assumed "
        f"{one(COMPUTE, RESNET101):g} ms, LSTM {one(COMPUTE, LSTM):g} ms), with one allreduce per tensor at "
        f"{tie(PER_TENSOR):.0f} ms"
    )


def _judge(claims: Any, frame: pd.DataFrame, **how: Any) -> Sequence[Verdict]:
    """With the compute time at which the order flips."""
    verdicts, flip = judge(claims, frame, modelled=True, **how), order_flips_at(frame)
    return [replace(v, detail=f"{v.detail}; {flip}") if flip else v for v in verdicts]


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one study."""
    require_alike(runs, ALIKE)
    own = g.own_latency(runs)
    counts, latencies = (g.found_in(runs, column) for column in ("workers", "latency_us"))
    frame = g.numbers(
        runs,
        COLUMNS,
        lambda line: g.at_latency(place(line["series"], line["workers"]), line["latency_us"], own),
    )

    def table(series: str) -> pd.DataFrame:
        share, at = partial(percent, unit=""), place(series)
        sizes = [Column(f"N = {n:g}", EFFICIENCY, share, place(series, n)) for n in counts]
        columns = [Column("messages", MESSAGES, 0, at), Column("sync ms", SYNC, 0, at), *sizes]
        rows = {model: f"{name}, {series}" for model, name in MODELS.items()}
        return pivot(frame, rows, columns, first="model, communication")

    def drawn(series: str, settings: dict[float, str]) -> list[panels.Draw]:
        return g.by_model(frame, EFFICIENCY, settings, series, DASHES[series], 100)

    by_size = [
        line for series in DASHES for line in drawn(series, {n: place(series, n) for n in counts})
    ]
    by_latency = [
        line
        for series in (PER_TENSOR, PER_STEP)
        for line in drawn(
            series, {x: g.at_latency(place(series), us, own) for x, us in enumerate(latencies)}
        )
    ]
    share = "throughput, % of ideal"
    shown = [
        panels.panel("by cluster size", *by_size, x="workers", y=share, log="xy", xticks=counts),
        panels.panel(
            f"{WORKERS} workers, by latency", *by_latency, at_x=[latencies.index(own)], log="y", y=share,
            x="latency between nodes (us); line: the network's",
            xticks={x: f"{us:g}" for x, us in enumerate(latencies)},
        ),
    ]  # fmt: skip
    title = "GraVAC, figure 1a: throughput against cluster size"
    said = (
        f"modelled, assumed compute times, models at the paper's sizes; {facts.scale_text(scale)}"
    )
    by_size_table = pd.concat(map(table, reversed(DASHES)), ignore_index=True)
    return made(
        __file__, scale, runs, frame, [Section("Throughput, % of ideal", by_size_table)], CLAIMS,
        judge=_judge, labels=MODELS, facts=g.head(runs, scale, network(runs)), said={"workers": WORKERS},
        figures={"fig1a": lambda: plot.figure(title, said, shown, size=(4.7, 3.9), legend=3)},
    )  # fmt: skip
