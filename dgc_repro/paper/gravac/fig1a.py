"""GraVAC's figure 1a: throughput against cluster size relative to ideal, modelled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim
from dgc_repro.paper.frame import Column, of, percent, pivot
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, WORKERS
from dgc_repro.paper.gravac.studies import (
    MODELLED_MS,
    at_latency,
    by_model,
    found_in,
    head,
    numbers,
    own_latency,
)
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import judge

EFFICIENCY, SYNC, MESSAGES = "scaling efficiency", "communication of a step", "messages of a step"
COMPUTE = "compute of a step"
PER_STEP, BUCKETS, PER_TENSOR = "per step", "buckets", "per tensor"
DASHES = {PER_TENSOR: ":", BUCKETS: "--", PER_STEP: "-"}
COLUMNS = {
    "efficiency": (EFFICIENCY, ""),
    "sync_ms": (SYNC, *MODELLED_MS),
    "compute_ms": (COMPUTE, *MODELLED_MS),
    "messages": (MESSAGES, ""),
}
ALIKE = ("scale.name", "study.networks", "study.workers", "study.latencies")
ASSUMED = "compute times"
SHARE = partial(percent, unit="")


def place(series: str, workers: float = WORKERS) -> str:
    """The setting of a line at the network's own latency."""
    return f"{series}, N = {workers:g}"


CLAIMS = (
    Claim(
        "lstm", "The LSTM (252 MB) scales better than ResNet101 (170 MB), although larger.", "figure 1a",
        (Check(EFFICIENCY, LSTM, RESNET101, above=1.0, setting=place(PER_STEP), ratio=True),),
        f"Throughput of {WORKERS} workers over {WORKERS} times that of one. A step sends all tensors in one "
        "allreduce, after compute. Nobody has measured the compute times. With another compute "
        "time of ResNet101 the order flips; the verdict names that time.",
        assumed=ASSUMED,
    ),
    Claim(
        "latency",
        "The latency of each tensor's message is the reason: with all tensors in one allreduce, ResNet101 "
        "scales better.",
        EXPECTED,
        (Check(EFFICIENCY, RESNET101, LSTM, above=1.0, setting=place(PER_STEP), ratio=True),),
        "The same throughputs, the other way round: one allreduce a step pays next to no latency.",
        margin=OURS, assumed=ASSUMED,
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one study."""
    require_alike(runs, ALIKE)
    own = own_latency(runs)

    def setting(line: pd.Series) -> str:
        return at_latency(place(line["series"], line["workers"]), line["latency_us"], own)

    frame = numbers(runs, COLUMNS, setting)
    verdicts, flip = judge(CLAIMS, frame, labels=MODELS, modelled=True), order_flips_at(frame)
    return made(
        __file__,
        scale,
        runs,
        frame,
        _sections(frame, runs),
        facts=head(runs, scale, network(runs)),
        verdicts=[replace(v, detail=f"{v.detail}; {flip}") if flip else v for v in verdicts],
        said={"workers": WORKERS},
        figures={"fig1a": partial(_figure, frame, runs, own, scale)},
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

    def one(quantity: str, model: str, series: str) -> float:
        return next(iter(of(frame, quantity, model, place(series))), math.nan)

    def tie(series: str) -> float:
        efficiency = one(EFFICIENCY, LSTM, series)
        return one(SYNC, RESNET101, series) * efficiency / (1 - efficiency)

    if math.isnan(tie(PER_STEP)):
        return ""
    resnet, lstm = (one(COMPUTE, model, PER_STEP) for model in (RESNET101, LSTM))
    return (
        f"the order flips at {tie(PER_STEP):.0f} ms of compute of ResNet101 (assumed {resnet:g} ms, LSTM "
        f"{lstm:g} ms), with one allreduce per tensor at {tie(PER_TENSOR):.0f} ms"
    )


def _sections(frame: pd.DataFrame, runs: Sequence[Run]) -> list[Section]:
    def table(series: str) -> pd.DataFrame:
        rows = {model: f"{name}, {series}" for model, name in MODELS.items()}
        columns = [
            Column("messages", MESSAGES, 0, place(series)),
            Column("sync ms", SYNC, 0, place(series)),
            *(
                Column(f"N = {n:g}", EFFICIENCY, SHARE, place(series, n))
                for n in found_in(runs, "workers")
            ),
        ]
        return pivot(frame, rows, columns, first="model, communication")

    by_size = pd.concat(map(table, reversed(DASHES)), ignore_index=True)
    return [Section("Throughput, % of ideal", by_size)]


def _figure(frame: pd.DataFrame, runs: Sequence[Run], own: float, scale: str) -> Figure:
    counts, latencies = found_in(runs, "workers"), found_in(runs, "latency_us")

    def by_size(axes: Axes) -> None:
        for series, dashes in DASHES.items():
            settings = {count: place(series, count) for count in counts}
            by_model(axes, frame, EFFICIENCY, settings, series, dashes, 100)
        plot.name_axes(axes, "workers", "throughput, % of ideal", "xy")
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_minor_locator(FixedLocator([]))

    def by_latency(axes: Axes) -> None:
        for series in (PER_TENSOR, PER_STEP):
            settings = {
                float(x): at_latency(place(series), us, own) for x, us in enumerate(latencies)
            }
            by_model(axes, frame, EFFICIENCY, settings, series, DASHES[series], 100)
        axes.axvline(latencies.index(own), color=plot.BLACK, linewidth=0.8)
        axes.set_xticks(range(len(latencies)), [f"{us:g}" for us in latencies])
        plot.name_axes(
            axes, "latency between nodes (us); line: the network's", "throughput, % of ideal", "y"
        )

    caption = (
        f"modelled, assumed compute times, models at the paper's sizes; {facts.scale_text(scale)}"
    )
    panels = [("by cluster size", by_size), (f"{WORKERS} workers, by latency", by_latency)]
    title = "GraVAC, figure 1a: throughput against cluster size"
    return plot.figure(title, caption, panels, size=(4.7, 3.9), legend=3)  # fmt: skip
