"""GraVAC's figure 3: throughput (a) and communication speedup (b) by compression factor.

Communication is modelled: one allgather a step of all tensors' entries. Three series differ in the time of
compressing: none, that of Table III (a V100), and that measured on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import Column, join, lines, pivot
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, VGG16, fig1a
from dgc_repro.paper.gravac.studies import (
    COLOURS,
    MODELLED_MS,
    at_latency,
    by_model,
    found_in,
    head,
    numbers,
    own_latency,
)
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
    "compress_ms": (COMPRESS, *MODELLED_MS),
    "compress_low": (f"{COMPRESS}, first quartile", *MODELLED_MS),
    "compress_high": (f"{COMPRESS}, third quartile", *MODELLED_MS),
    "sync_ms": (SYNC, *MODELLED_MS),
    "step_ms": ("step", *MODELLED_MS),
}
_study = ("networks", "workers", "factors", "repeats", "steps")
ALIKE = ("scale.name", *(f"study.{name}" for name in _study))
PRINTED = {RESNET101: 500, VGG16: 500, LSTM: 1000}
"""Where the paper sees throughput and communication speedup saturate."""
SATURATED = 0.95
"""Saturated: this share of the value at the largest factor."""
GRID_STEP = 2.6
"""A little more than a step of the factors 10, 20, 50, ...: tolerance of a factor of saturation."""


def _saturates(model: str, setting: str) -> tuple[Check]:
    at = PRINTED[model]
    return (Check(SATURATION, model, None, at / GRID_STEP, at * GRID_STEP, setting, printed=at),)


_share = f"The smallest factor with {100 * SATURATED:.0f} % of the"
CLAIMS = (
    *(
        Claim(
            f"{model}.saturates", f"{name}: throughput saturates at {PRINTED[model]}x.", "figure 3a",
            _saturates(model, STATED),
            f"{_share} throughput at the largest factor, within a step of the factors 10, 20, 50, ... of the "
            "printed one. A step sends all tensors in one allgather. Compressing takes half of Table III's "
            "direct DGC, at every factor.",
            margin=OURS, assumed=fig1a.ASSUMED,
        )
        for model, name in MODELS.items()
    ),
    *(
        Claim(
            f"{model}.communication", f"{name}: communication speedup saturates at {PRINTED[model]}x.",
            "figure 3b", _saturates(model, COMMUNICATION),
            f"{_share} communication speedup at the largest factor, as near to the printed one. The "
            "latencies of the network are assumed; without them the speedup would never saturate.",
            margin=OURS, assumed="latencies of the network",
        )
        for model, name in MODELS.items()
    ),
    *(
        Claim(
            f"lstm.after.{model}", f"The LSTM saturates later than {MODELS[model]}.", "figure 3a",
            (Check(SATURATION, LSTM, model, above=1.0, setting=STATED, ratio=True),),
            "Compares the factors at which throughput saturates.", assumed=fig1a.ASSUMED,
        )
        for model in (RESNET101, VGG16)
    ),
)  # fmt: skip


def saturation(by_factor: Mapping[float, float]) -> float:
    """The smallest factor with `SATURATED` of the value at the largest factor."""
    enough = SATURATED * by_factor[max(by_factor)]
    return min(factor for factor, value in by_factor.items() if value >= enough)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one study."""
    require_alike(runs, ALIKE)
    own = own_latency(runs)
    fig1a_words = Template.read(Path(__file__).with_name("fig1a.md"))

    def setting(line: pd.Series) -> str:
        return at_latency(f"{line['compress']}, {line['factor']:g}x", line["latency_us"], own)

    saturations = lines(line for run in runs for line in _saturations(run, own))
    frame = join(numbers(runs, COLUMNS, setting), saturations)
    gradients = (
        f"{run.row} step {run.summary['steps']} of {run.environment.get('data')}" for run in runs
    )
    threads = facts.distinct(run.environment.get("threads_per_worker") for run in runs)
    more = [
        *fig1a.network(runs),
        ("workers", f"{runs[0].setting('study.workers')}, modelled"),
        ("gradients", "; ".join(gradients)),
        (
            "compressing, measured",
            f"medians of n = {runs[0].setting('study.repeats')} repeats, {threads} threads",
        ),
    ]
    return made(
        __file__,
        scale,
        runs,
        frame,
        _sections(frame, runs, own),
        facts=head(runs, scale, more),
        verdicts=judge(CLAIMS, frame, labels=MODELS, modelled=True),
        said={"share": _share, "latency": own},
        choices=fig1a_words.choices,
        warning=facts.busy(runs),
        figures={"fig3": partial(_figure, frame, runs, scale)},
    )


def _saturations(run: Run, own: float) -> list[dict[str, Any]]:
    """Where a model saturates, by series and latency; of communication, at the network's own latency."""
    found = {}
    for (series, latency), group in run.lines.groupby(["compress", "latency_us"]):
        curves = {at_latency(str(series), float(str(latency)), own): "throughput"}
        if (series, latency) == (NONE, own):
            curves[COMMUNICATION] = "communication"
        for setting, column in curves.items():
            found[setting] = saturation(dict(zip(group["factor"], group[column], strict=True)))
    fixed = {"row": run.row, "seed": run.seed, "quantity": SATURATION, "unit": "x"}
    return [{**fixed, "setting": setting, "value": value} for setting, value in found.items()]


def _sections(frame: pd.DataFrame, runs: Sequence[Run], own: float) -> list[Section]:
    def line(model: str, factor: float) -> pd.DataFrame:
        free, measured = f"{NONE}, {factor:g}x", f"{MEASURED}, {factor:g}x"
        columns = [
            Column("sync ms", SYNC, 0, free),
            Column("communication", COMMUNICATION, 2, free),
            Column("compress ms", COMPRESS, 0, measured),
            *(
                Column(f"throughput: {label}", THROUGHPUT, 2, f"{series}, {factor:g}x")
                for series, label in SERIES.items()
            ),
        ]
        return pivot(frame, {model: f"{MODELS[model]} {factor:g}x"}, columns, "model, factor")

    by_factor = [line(model, factor) for model in MODELS for factor in found_in(runs, "factor")]
    stated = f"throughput, compressing {SERIES[STATED]}"
    settings = {
        **{series: f"throughput, compressing {label}" for series, label in SERIES.items()},
        COMMUNICATION: "communication",
        **{
            at_latency(STATED, us, own): f"{stated}, {us:g} us"
            for us in found_in(runs, "latency_us")
            if us != own
        },
    }
    columns = [Column(what, SATURATION, 0, setting) for setting, what in settings.items()]
    saturates = pivot(frame, MODELS, columns, "of")
    saturates.insert(1, "paper", [str(PRINTED[model]) for model in MODELS])
    turned = saturates.set_index("of").T.rename_axis("of").reset_index()
    return [
        Section("Speedups over 10x", pd.concat(by_factor, ignore_index=True)),
        Section("Factors at which throughput and communication saturate", turned),
    ]


def _figure(frame: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    def draw(axes: Axes, quantity: str, shown: Mapping[str, str]) -> None:
        """``shown``: by series, the series whose look is used."""
        for series, look in shown.items():
            settings = {factor: f"{series}, {factor:g}x" for factor in found_in(runs, "factor")}
            by_model(axes, frame, quantity, settings, SERIES[look], DASHES[look])
        for model, at in PRINTED.items():
            where = at * 1.06 if model == VGG16 else at  # beside ResNet101's
            axes.axvline(where, color=COLOURS[model][0], linewidth=0.8, alpha=0.6)
        plot.name_axes(axes, "compression factor", f"{quantity}, of that at 10x", "xy")

    panels = [
        ("a: throughput", partial(draw, quantity=THROUGHPUT, shown={s: s for s in SERIES})),
        ("b: communication (the same however compressed)",
         partial(draw, quantity=COMMUNICATION, shown={NONE: STATED})),
    ]  # fmt: skip
    busy = "; busy machine" if facts.busy(runs) else ""
    caption = (
        f"one allgather a step, modelled, {runs[0].setting('study.workers')} workers, models at the paper's "
        f"sizes; {facts.scale_text(scale)}{busy}; vertical lines: the paper's points of saturation; legend: "
        "time of compressing"
    )
    title = "GraVAC, figure 3: throughput and communication by compression factor"
    return plot.figure(title, caption, panels, size=(4.7, 4.0), legend=3)
