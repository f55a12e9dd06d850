"""GraVAC's figure 3: throughput and communication speedup by compression factor.

Communication is modelled, one allgather a step of all tensors' entries; what compressing takes is nothing,
what Table III says of a V100, or measured on this machine's CPU: three series that never share a name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.scaling import (
    LOOKS,
    MODELS,
    assumed_ms,
    networks,
    profile_latency,
    sizes,
)
from dgc_repro.report.study import (
    Block,
    Page,
    distinct,
    groups,
    header,
    judged,
    lines,
    require_one_study,
    scale_label,
    table_of,
    warning,
)
from dgc_repro.report.verdict import Values

NONE, STATED, MEASURED = "none", "stated", "measured"
SERIES = {
    NONE: "nothing",
    STATED: "as Table III (V100)",
    MEASURED: "measured (this CPU)",
}
DASHES = {NONE: ":", STATED: "-", MEASURED: "--"}
ALIKE = ("study.networks", "study.workers", "study.factors", "study.repeats", "study.steps")


def saturation(factors: Sequence[float], throughputs: Sequence[float]) -> float:
    """The smallest factor with `gravac.SATURATED` of the throughput at the largest factor."""
    ordered = sorted(zip(factors, throughputs, strict=True))
    enough = gravac.SATURATED * ordered[-1][1]
    return next(factor for factor, throughput in ordered if throughput >= enough)


def points(frame: pd.DataFrame, latency_us: float) -> dict[tuple[str, str], float]:
    """The factor of saturation by model and series, at one latency."""
    own = frame[frame["latency_us"] == latency_us]
    return {
        (model, series): saturation(group["factor"].tolist(), group["throughput"].tolist())
        for model, series, group in groups(own, "row", "compress")
    }


def values(frame: pd.DataFrame, latency_us: float) -> Values:
    """What the claims compare: log2 of the factors, compressing as the paper's table says."""
    found = {
        gravac.LABELS[model]: {0: math.log2(factor)}
        for (model, series), factor in points(frame, latency_us).items()
        if series == STATED and model in MODELS
    }
    return {"saturation": {**found, gravac.ONE: {0: 0.0}}}


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished records of one scale; UserError if they are not alike."""
    require_one_study(records, ALIKE)
    frame, latency = table_of(records), profile_latency(records)
    facts = {r.row: r for r in records}
    models = [
        (
            gravac.LABELS[model],
            f"{sizes(facts[model])}; {assumed_ms(facts[model])}; gradient of step "
            f"{facts[model].summary['steps']}, {facts[model].environment.get('data')}",
        )
        for model in MODELS
        if model in facts
    ]
    threads = distinct([r.environment.get("threads_per_worker") for r in records])
    repeats = distinct([r.setting("study.repeats") for r in records])
    busy = ", ".join(f"{r.environment.get('busy_cores', math.nan):.2f}" for r in records)
    more = [
        ("sizes", "the paper's, at every scale"),
        *models,
        ("network", f"{networks(records)}; {records[0].setting('study.workers')} workers"),
        ("compressing, measured", f"{repeats} repeats, {threads} threads, medians"),
        ("cores busy with other work before each", busy),
    ]
    return Page(
        title="GraVAC, figure 3: throughput and communication by compression factor, modelled",
        scale=scale,
        header=header(records, scale, more),
        warning=warning(records),
        blocks=(
            *(_model_block(frame, model, latency) for model in MODELS if model in facts),
            _saturation_block(frame, latency),
        ),
        verdicts=judged(gravac.FIG3_CLAIMS, values(frame, latency), scale, modelled=True),
        notes=(),
        choices=gravac.FIG3_CHOICES,
        numbers=tuple(
            {
                "model": row["row"],
                **{key: row[key] for key in ("network", "compress", "latency_us", "factor")},
                **{key: row[key] for key in ("compress_ms", "compress_low", "compress_high")},
                **{key: row[key] for key in ("sync_ms", "step_ms", "throughput", "communication")},
            }
            for row in lines(frame)
        ),
    )


def _model_block(frame: pd.DataFrame, model: str, latency_us: float) -> Block:
    own = frame[(frame["row"] == model) & (frame["latency_us"] == latency_us)]
    rows = []
    for factor, group in groups(own, "factor"):
        found = {row["compress"]: row for row in lines(group)}
        measured = found[MEASURED]
        rows.append(
            (
                f"{factor}x",
                f"{measured['sync_ms']:.0f}",
                f"{measured['communication']:.2f}",
                f"{measured['compress_ms']:.0f} ({measured['compress_low']:.0f}-"
                f"{measured['compress_high']:.0f})",
                *(f"{found[series]['throughput']:.2f}" for series in SERIES),
            )
        )
    stated = float(own[own["compress"] == STATED]["compress_ms"].iloc[0])
    return Block(
        gravac.LABELS[model],
        "Speedups over 10x. Sync: one allgather of all tensors' entries a step, modelled. Compressing as "
        "measured here (median, quartiles). Last three: throughput with compressing taken as free, as Table "
        f"III of the paper says of a V100 ({stated:.0f} ms), and as measured.",
        (
            *(
                "factor",
                "sync ms",
                "communication",
                "compress ms",
            ),
            *("free", "Table III", "measured"),
        ),
        tuple(rows),
    )


def _saturation_block(frame: pd.DataFrame, latency_us: float) -> Block:
    rows = []
    for latency in sorted(frame["latency_us"].unique()):
        found = points(frame, latency)
        for series, label in SERIES.items():
            cells = [found.get((model, series)) for model in MODELS]
            if any(cell is not None for cell in cells):
                rows.append(
                    (
                        f"{latency:g}" + (" (profile)" if latency == latency_us else ""),
                        label,
                        *("-" if cell is None else f"{cell:g}x" for cell in cells),
                    )
                )
    printed = tuple(f"{gravac.SATURATION[model]}x" for model in MODELS)
    return Block(
        "Where throughput saturates, and what it rests on",
        f"The smallest factor with {100 * gravac.SATURATED:.0f} % of the throughput at the largest one.",
        ("latency us", "compressing", *(gravac.LABELS[model] for model in MODELS)),
        (("paper", "V100", *printed), *rows),
    )


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Left: throughput over that at 10x by factor. Right: communication speedup."""
    frame, latency = table_of(records), profile_latency(records)
    shown = frame[frame["latency_us"] == latency]
    with style.house_style():
        drawing = Figure(figsize=(9.4, 4.6), layout="constrained")
        left, right = drawing.subplots(1, 2)
        for model in MODELS:
            colour, marker = LOOKS[model]
            for series, dashes in DASHES.items():
                own = shown[(shown["row"] == model) & (shown["compress"] == series)]
                left.plot(
                    own["factor"], own["throughput"], color=colour, linestyle=dashes, marker=marker,
                    markersize=4, markerfacecolor=colour if series == STATED else "white",
                    label=gravac.LABELS[model] if series == STATED else None,
                )  # fmt: skip
            own = shown[(shown["row"] == model) & (shown["compress"] == NONE)]
            right.plot(
                own["factor"], own["communication"], color=colour, marker=marker, markersize=4
            )
            if model in set(shown["row"]):
                for axes in (left, right):
                    axes.axvline(
                        gravac.SATURATION[model] * (1.06 if model == "vgg16" else 1.0),
                        color=colour, linewidth=0.8, alpha=0.6,
                    )  # fmt: skip
        for series, label in SERIES.items():
            left.plot([], [], color="#666666", linestyle=DASHES[series], label=f"compress: {label}")
        for axes in (left, right):
            _by_factor(axes)
        left.set_ylabel("throughput, of that at 10x (log)")
        right.set_ylabel("communication speedup over 10x (log)")
        busy = "; busy machine" if warning(records) else ""
        workers = records[0].setting("study.workers")
        style.title(
            left, "Throughput by compression factor",
            f"one allgather a step, modelled, {workers} workers; {scale_label(scale)}{busy}",
        )  # fmt: skip
        style.title(
            right, "Communication", "modelled; thin lines: the paper's points of saturation"
        )
        drawing.legend(loc="outside lower center", ncols=3)
    return drawing


def _by_factor(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        style.plain_log(axis)
    axes.set_xlabel("compression factor (log)")
