"""The lecture's question on allreduce of compressed gradients: density of sums, bits of sums.

Random supports beside 1 - (1 - d)^m; supports of real gradients, as they are and with residuals, beside
independent ones of the same sizes in the same tensors; sums of codes beside the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dgc_repro.paper import lecture
from dgc_repro.paper.claim import Contradiction
from dgc_repro.paper.lecture import FED, HALF, HALF_DENSITY, INDEPENDENT, RANDOM, REAL, THEORY
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.study import (
    Block,
    Page,
    distinct,
    groups,
    header,
    judged,
    lines,
    mean_sd,
    require_one_study,
    scale_label,
    summary,
    table_of,
)
from dgc_repro.report.verdict import Values

DENSITY, CODES = "density", "codes"
KINDS = {"random": RANDOM, "gradient": REAL, "error-fed": FED}
"""What a row's ``kind`` is called in claims."""
LABELS = {
    "random": "independent random supports",
    "gradient": "real gradients",
    "error-fed": "real gradients with residuals",
}
COLOURS = {10: style.BLACK, 100: style.BLUE, 1000: style.ORANGE}
MARKERS = {"random": "o", "gradient": "s", "error-fed": "^"}
ROW_GRADIENT = "gradient"


def totals(frame: pd.DataFrame, kind: str | None = None) -> pd.DataFrame:
    """Rows of whole sums: all workers of the ring."""
    whole = frame[(frame["what"] == DENSITY) & (frame["summed"] == frame["workers"])]
    return whole if kind is None else whole[whole["kind"] == kind]


def values(frame: pd.DataFrame) -> Values:
    """What the claims compare, by seed: of each kind the largest ring."""
    found: dict[str, dict[str, dict[int, float]]] = {
        "density": {}, "density_error": {}, "extra_bits": {},
    }  # fmt: skip

    def put(quantity: str, row: str, seed: int, value: float) -> None:
        found[quantity].setdefault(row, {})[int(seed)] = float(value)

    for kind, factor, group in groups(totals(frame), "kind", "factor"):
        name = KINDS[kind]
        for row in lines(group[group["workers"] == group["workers"].max()]):
            put("density", lecture.density_row(name, factor), row["seed"], row["value"])
            independent = lecture.density_row(f"{INDEPENDENT} of {name}", factor)
            put("density", independent, row["seed"], row["theory"])
            put("density", HALF, row["seed"], HALF_DENSITY)
    for seed, group in groups(totals(frame, "random"), "seed"):
        put("density_error", RANDOM, seed, (group["value"] / group["theory"] - 1).abs().max())
        put("density_error", THEORY, seed, 0.0)
    codes = frame[frame["what"] == CODES]
    for bits, group in groups(codes, "bits"):
        nearest = (group["theory"] - group["value"]).groupby(group["seed"]).idxmin()
        for row in lines(group.loc[nearest]):
            put("extra_bits", f"bound, {bits} bits", row["seed"], row["theory"])
            put("extra_bits", f"real, {bits} bits", row["seed"], row["value"])
    return found


def how_near(frame: pd.DataFrame) -> tuple[Contradiction, ...]:
    """How near the largest sums of real codes come to their bound at the most workers."""
    codes = frame[frame["what"] == CODES]
    if codes.empty:
        return ()
    most = int(codes["workers"].max())
    parts = [
        f"{bits}-bit codes {mean_sd(group['value'].tolist())}"
        for bits, group in groups(codes[codes["workers"] == most], "bits")
    ]
    return (
        Contradiction(
            "How near the largest sums of real codes come to log2 N bits more.",
            f"N = {most}: at most {math.log2(most):g}, met {', '.join(parts)} "
            "(largest sum of one step, mean +- sd over seeds).",
        ),
    )


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished records of one scale; UserError if they are not alike."""
    require_one_study(records, ("model", "dataset", "train.batch_size", "launch.workers"))
    frame = table_of(records)
    real = [record for record in records if record.row == ROW_GRADIENT]
    more = [
        (
            "random supports",
            distinct([r.setting("study.values") for r in records if r.row == "random"]) + " values",
        ),
        (
            "real gradients",
            f"{distinct([r.summary.get('parameters') for r in real])} values in "
            f"{distinct([r.summary.get('tensors') for r in real])} tensors of "
            f"{distinct([_class(r.setting('model._target_')) for r in real])}, "
            f"{distinct([r.environment.get('data') for r in real])}, batch "
            f"{distinct([r.setting('train.batch_size') for r in real])} a worker, "
            f"{distinct([r.setting('launch.workers') for r in real])} workers, after "
            f"{distinct([r.summary.get('steps') for r in real])} steps",
        ),
    ]
    return Page(
        title="Density of the partial sums of an allreduce (lecture)",
        scale=scale,
        header=header(records, scale, more),
        warning="",
        blocks=(*(_density_block(frame, kind) for kind in KINDS), _codes_block(frame)),
        verdicts=judged(lecture.DENSITY_CLAIMS, values(frame), scale),
        notes=how_near(frame),
        choices=(),
        numbers=tuple(
            summary(
                frame,
                ("what", "kind", "factor", "bits", "workers", "summed"),
                ("value", "theory", "ring_over_dense", "gather_over_dense"),
            )
        ),
    )


def _class(target: object) -> str:
    return str(target).rpartition(".")[2]


def _density_block(frame: pd.DataFrame, kind: str) -> Block:
    rows = []
    for factor, count, group in groups(totals(frame, kind), "factor", "workers"):
        rows.append(
            (
                f"{factor}x",
                str(count),
                mean_sd(group["value"].tolist()),
                f"{group['theory'].mean():.3g}",
                mean_sd((group["theory"] / group["value"]).tolist()),
                mean_sd(group["ring_over_dense"].tolist()),
                f"{group['gather_over_dense'].mean():.3g}",
            )
        )
    return Block(
        f"Density of the sum: {LABELS[kind]}",
        "1 = every value is in it; independent: 1 - (1 - d)^N, tensor by tensor. Bytes over those of a "
        "dense ring allreduce: a ring of sparse partial sums (8 bytes an entry), and an allgather of "
        "the payloads. Mean +- sd over seeds.",
        (
            *("factor", "N", "density", "independent", "independent / density"),
            *("bytes: ring of sums", "bytes: allgather"),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 5, 6),
    )


def _codes_block(frame: pd.DataFrame) -> Block:
    rows = []
    for bits, count, group in groups(frame[frame["what"] == CODES], "bits", "workers"):
        rows.append(
            (
                str(bits),
                str(count),
                mean_sd(group["value"].tolist()),
                f"{group['theory'].mean():.3g}",
                f"{math.log2(count) / 2:.3g}",
            )
        )
    return Block(
        "Bits of a sum of codes: real gradients",
        "log2 of the largest sum over the largest code. Worst case: all of one sign, log2 N; of random "
        "signs a sum grows like sqrt(N). Codes share a scale a tensor, the largest of all workers.",
        ("bits of a code", "N", "bits more", "worst case", "random signs"),
        tuple(rows),
    )


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Density of the partial sums by workers summed; that of real gradients over that of independent
    supports; bits more of a sum of codes."""
    frame = table_of(records)
    n = frame["seed"].nunique()
    with style.house_style():
        drawing = Figure(figsize=(11.4, 4.4), layout="constrained")
        left, middle, right = drawing.subplots(1, 3, width_ratios=(1.5, 1.0, 1.0))
        _draw_overlap(middle, frame)
        for kind in KINDS:
            own = frame[(frame["what"] == DENSITY) & (frame["kind"] == kind)]
            for factor, group in groups(own, "factor"):
                ring = group[group["workers"] == group["workers"].max()].groupby("summed")
                colour = COLOURS.get(int(factor), style.GREEN)
                measured = ring["value"].mean()
                if kind == "random":
                    theory = ring["theory"].mean()
                    left.plot(theory.index, theory, color=colour, label=f"{factor}x, 1 - (1 - d)^m")
                left.plot(
                    measured.index, measured, color=colour, marker=MARKERS[kind], markersize=5,
                    linestyle="none" if kind == "random" else "--", linewidth=0.8,
                    markerfacecolor="white" if kind == "error-fed" else colour,
                )  # fmt: skip
        for kind, label in LABELS.items():
            left.plot(
                [], [], color="#666666", marker=MARKERS[kind], markersize=5, label=label,
                linestyle="none" if kind == "random" else "--", linewidth=0.8,
                markerfacecolor="white" if kind == "error-fed" else "#666666",
            )  # fmt: skip
        left.axhline(HALF_DENSITY, color="#999999", linewidth=0.8, linestyle=":")
        left.text(1, HALF_DENSITY * 1.06, "places cost more\nthan they save", fontsize=7)
        left.set_yscale("log")
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.set_ylabel("density of the partial sum (log)")
        codes = frame[frame["what"] == CODES]
        counts = sorted(codes["workers"].unique())
        for (bits, group), colour in zip(
            codes.groupby("bits"),
            (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE),
            strict=False,
        ):
            mean = group.groupby("workers")["value"].mean()
            right.plot(
                mean.index, mean, color=colour, marker="s", markersize=5, label=f"real, {bits} bits"
            )
        right.plot(
            counts, [math.log2(c) for c in counts], color=style.BLACK, label="worst case, log2 N"
        )
        right.plot(
            counts, [math.log2(c) / 2 for c in counts], color=style.BLACK, linestyle=":",
            label="random signs, log2 N / 2",
        )  # fmt: skip
        right.set_ylabel("bits more than one code")
        _by_count(left, "workers summed m (log)")
        for axes in (middle, right):
            _by_count(axes, "workers N (log)")
        caption = f"{scale_label(scale)}, n = {n} seeds"
        style.title(left, "Density of partial sums along a ring", caption)
        style.title(middle, "Real supports overlap", f"{caption}; bars: sd")
        style.title(right, "Bits of a sum of codes", caption)
        drawing.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        right.legend(loc="upper left")
    return drawing


def _draw_overlap(axes: Axes, frame: pd.DataFrame) -> None:
    """Density of the sum of real gradients' supports over that of independent ones, by N."""
    axes.axhline(1.0, color=style.BLACK, linewidth=0.8)
    for kind in ("gradient", "error-fed"):
        for factor, group in groups(totals(frame, kind), "factor"):
            share = (group["value"] / group["theory"]).groupby(group["workers"])
            colour = COLOURS.get(int(factor), style.GREEN)
            axes.errorbar(
                share.mean().index, share.mean(), yerr=share.std(ddof=1).fillna(0.0), capsize=2,
                color=colour, marker=MARKERS[kind], markersize=5, linewidth=0.8, linestyle="--",
                markerfacecolor="white" if kind == "error-fed" else colour,
            )  # fmt: skip
    axes.set_ylabel("density, of that of independent supports")


def _by_count(axes: Axes, what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(what)
