"""GraVAC's figure 3: throughput (a) and communication speedup (b) by compression factor.

Communication is modelled: one allgather a step of all tensors' entries. Three series differ in the time of
compressing: none, that of Table III (a V100), and that measured on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, lines, pivot
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, VGG16, fig1a
from dgc_repro.paper.gravac import studies as g
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import judge

THROUGHPUT, COMMUNICATION = "throughput", "communication speedup"
SATURATION = "factor of saturation"
SYNC, COMPRESS = "communication of a step", "compression of a step"
NONE, STATED, MEASURED = "none", "stated", "measured"
SERIES = {NONE: "free", STATED: "as Table III (V100)", MEASURED: "measured (this CPU)"}
DASHES = {NONE: ":", STATED: "-", MEASURED: "--"}
COLUMNS = {
    "throughput": (THROUGHPUT, "x"),
    "communication": (COMMUNICATION, "x"),
    "compress_ms": (COMPRESS, *g.MODELLED_MS),
    "compress_low": (f"{COMPRESS}, first quartile", *g.MODELLED_MS),
    "compress_high": (f"{COMPRESS}, third quartile", *g.MODELLED_MS),
    "sync_ms": (SYNC, *g.MODELLED_MS),
    "step_ms": ("step", *g.MODELLED_MS),
}
_study = ("networks", "workers", "factors", "repeats", "steps")
ALIKE = ("scale.name", *(f"study.{name}" for name in _study))
PRINTED = {RESNET101: 500, VGG16: 500, LSTM: 1000}
"""Where the paper sees throughput and communication speedup saturate."""
SATURATED = 0.95
"""Saturated: this share of the value at the largest factor."""
GRID_STEP = 2.6
"""A little more than a step of the factors 10, 20, 50, ...: tolerance of a factor of saturation."""
SHARE = f"The smallest factor with {100 * SATURATED:.0f} % of the"


WORDS = Template.read(__file__)


def _saturates_at(name: str, model: str, setting: str, assumed: str) -> Claim:
    at, words = PRINTED[model], {"model": MODELS[model], "share": SHARE}
    ends = at / GRID_STEP, at * GRID_STEP
    check = Check(SATURATION, model, None, *ends, setting, printed=at)
    return WORDS.claim(name, check, of=model, ours=True, assumed=assumed, at=at, **words)


def _later(model: str) -> Claim:
    check = Check(SATURATION, LSTM, model, above=1.0, setting=STATED, ratio=True)
    return WORDS.claim(model, check, of="lstm.after", assumed=fig1a.ASSUMED)


CLAIMS = (
    *(_saturates_at("saturates", model, STATED, fig1a.ASSUMED) for model in MODELS),
    *(_saturates_at("communication", m, COMMUNICATION, "latencies of the network") for m in MODELS),
    *map(_later, (RESNET101, VGG16)),
)


def saturation(by_factor: Mapping[float, float]) -> float:
    """The smallest factor with `SATURATED` of the value at the largest factor."""
    enough = SATURATED * by_factor[max(by_factor)]
    return min(factor for factor, value in by_factor.items() if value >= enough)


def _saturations(run: Run, own: float) -> list[dict[str, Any]]:
    """Where a model saturates, by series and latency; of communication, at the network's own latency."""
    found = {}
    for (series, latency), group in run.lines.groupby(["compress", "latency_us"]):
        curves = {g.at_latency(str(series), float(str(latency)), own): "throughput"}
        if (series, latency) == (NONE, own):
            curves[COMMUNICATION] = "communication"
        for setting, column in curves.items():
            found[setting] = saturation(dict(zip(group["factor"], group[column], strict=True)))
    fixed = {"row": run.row, "seed": run.seed, "quantity": SATURATION, "unit": "x"}
    return [{**fixed, "setting": setting, "value": value} for setting, value in found.items()]


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one study."""
    require_alike(runs, ALIKE)
    own, factors = g.own_latency(runs), g.found_in(runs, "factor")

    def setting(line: pd.Series) -> str:
        return g.at_latency(f"{line['compress']}, {line['factor']:g}x", line["latency_us"], own)

    saturations = lines(line for run in runs for line in _saturations(run, own))
    frame = join(g.numbers(runs, COLUMNS, setting), saturations)
    workers, repeats = (runs[0].setting(f"study.{name}") for name in ("workers", "repeats"))
    gradients = (
        f"{run.row} step {run.summary['steps']} of {run.environment.get('data')}" for run in runs
    )
    threads = facts.distinct(run.environment.get("threads_per_worker") for run in runs)
    more = [
        *fig1a.network(runs),
        ("workers", f"{workers}, modelled"),
        ("gradients", "; ".join(gradients)),
        ("compressing, measured", f"medians of n = {repeats} repeats, {threads} threads"),
    ]
    said = (
        f"one allgather a step, modelled, {workers} workers, models at the paper's sizes; "
        f"{facts.scale_text(scale)}{'; busy machine' if facts.busy(runs) else ''}; vertical lines: the "
        "paper's points of saturation; legend: time of compressing"
    )
    title = "GraVAC, figure 3: throughput and communication by compression factor"
    communication = "b: communication (the same however compressed)"
    shown = [
        _panel("a: throughput", frame, factors, THROUGHPUT, {s: s for s in SERIES}),
        _panel(communication, frame, factors, COMMUNICATION, {NONE: STATED}),
    ]
    return made(
        __file__, scale, runs, frame,
        [
            Section("Speedups over 10x", _speedups(frame, factors)),
            Section(
                "Factors at which throughput and communication saturate",
                _saturates(frame, g.found_in(runs, "latency_us"), own),
            ),
        ],
        CLAIMS, judge=partial(judge, modelled=True), labels=MODELS, facts=g.head(runs, scale, more),
        said={"share": SHARE, "latency": own}, warning=facts.busy(runs),
        choices=fig1a.WORDS.choices,
        figures={"fig3": lambda: plot.figure(title, said, shown, size=(4.7, 4.0), legend=3)},
    )  # fmt: skip


def _speedups(frame: pd.DataFrame, factors: Sequence[float]) -> pd.DataFrame:
    def line(model: str, factor: float) -> pd.DataFrame:
        def column(heading: str, quantity: str, decimals: int, series: str) -> Column:
            return Column(heading, quantity, decimals, f"{series}, {factor:g}x")

        columns = [
            column("sync ms", SYNC, 0, NONE),
            column("communication", COMMUNICATION, 2, NONE),
            column("compress ms", COMPRESS, 0, MEASURED),
            *(column(f"throughput: {label}", THROUGHPUT, 2, s) for s, label in SERIES.items()),
        ]
        return pivot(frame, {model: f"{MODELS[model]} {factor:g}x"}, columns, "model, factor")

    return pd.concat((line(m, factor) for m in MODELS for factor in factors), ignore_index=True)


def _saturates(frame: pd.DataFrame, latencies: Sequence[float], own: float) -> pd.DataFrame:
    of = {series: f"throughput, compressing {label}" for series, label in SERIES.items()}
    others = [us for us in latencies if us != own]
    settings = {
        **of,
        COMMUNICATION: "communication",
        **{g.at_latency(STATED, us, own): f"{of[STATED]}, {us:g} us" for us in others},
    }
    columns = [Column(what, SATURATION, 0, setting) for setting, what in settings.items()]
    table = pivot(frame, MODELS, columns, "of")
    table.insert(1, "paper", [str(PRINTED[model]) for model in MODELS])
    return table.set_index("of").T.rename_axis("of").reset_index()


def _panel(
    title: str, frame: pd.DataFrame, factors: Sequence[float], quantity: str, shown: Mapping[str, str]
) -> panels.Panel:  # fmt: skip
    """``shown``: by series, the series whose look is used."""
    drawn = []
    for series, look in shown.items():
        settings = {factor: f"{series}, {factor:g}x" for factor in factors}
        drawn += g.by_model(frame, quantity, settings, SERIES[look], DASHES[look])
    marks = [
        (at * 1.06 if model == VGG16 else at, {"color": g.COLOURS[model][0], "alpha": 0.6})
        for model, at in PRINTED.items()  # VGG16's beside ResNet101's
    ]
    y = f"{quantity}, of that at 10x"
    return panels.panel(title, *drawn, x="compression factor", y=y, log="xy", at_x=marks)
