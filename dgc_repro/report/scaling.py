"""GraVAC's figure 1a: throughput against cluster size relative to ideal, modelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from dgc_repro.paper import gravac
from dgc_repro.paper.claim import Claim
from dgc_repro.paper.gravac import LSTM, PER_STEP, PER_TENSOR, RESNET101
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.study import (
    Block,
    Page,
    groups,
    header,
    judged,
    lines,
    require_one_study,
    scale_label,
    table_of,
)
from dgc_repro.report.verdict import Values, Verdict

MODELS = [model for model, _, _, _ in gravac.MODELS]
LOOKS = {
    "resnet101": (style.BLUE, "o"),
    "vgg16": (style.GREEN, "s"),
    "lstm": (style.ORANGE, "^"),
}
SERIES = {PER_STEP: "per step", "buckets": "DDP's buckets", PER_TENSOR: "per tensor"}
DASHES = {PER_STEP: "-", "buckets": "--", PER_TENSOR: ":"}


def profile_latency(records: Sequence[Measurement]) -> float:
    """Microseconds of the outer link as the network's file has it: the judged one, of the first row."""
    return float(records[0].table["latency_us"].iloc[0])


def sizes(record: Measurement) -> str:
    """A model's parameters and tensors."""
    return f"{record.summary['parameters']:,} parameters in {record.summary['tensors']} tensors"


def assumed_ms(record: Measurement) -> str:
    """The compute time of a step."""
    return f"compute {record.setting('study.compute_ms'):g} ms (assumed)"


def networks(records: Sequence[Measurement]) -> str:
    """The networks by name, with the sources of their numbers."""
    named = records[0].config["study"]["networks"]
    return "; ".join(f"{name}: {node['source']}" for name, node in named.items())


def curves(frame: pd.DataFrame, latency_us: float) -> pd.DataFrame:
    """Rows of the three series by workers, without the other latencies."""
    found: pd.DataFrame = frame[frame["latency_us"] == latency_us]
    return found


def sensitivity(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Rows of one series at the most workers, by latency."""
    most = frame["workers"] == frame["workers"].max()
    found: pd.DataFrame = frame[most & (frame["series"] == series)]
    return found.sort_values("latency_us")


def values(frame: pd.DataFrame, latency_us: float) -> Values:
    """Efficiency at the most workers, by model and series."""
    most = curves(frame, latency_us)
    found: dict[str, dict[int, float]] = {}
    for row in lines(most[most["workers"] == gravac.MOST_WORKERS]):
        if row["row"] in MODELS:
            name = gravac.scaling_row(row["row"], row["series"])
            found.setdefault(name, {})[row["seed"]] = row["efficiency"]
    return {"efficiency": found}


def tie_compute_ms(resnet_sync_ms: float, lstm_efficiency: float) -> float:
    """The compute time of ResNet101 with which it has the LSTM's efficiency: c / (c + sync) = e."""
    return resnet_sync_ms * lstm_efficiency / (1 - lstm_efficiency)


def order_flips_at(frame: pd.DataFrame) -> str:
    """At which compute time of ResNet101 it scales like the LSTM, at the most workers; "" without both.
    ``frame``: of `curves`; judged is one allreduce a step."""
    own = frame[(frame["series"] == PER_STEP) & (frame["workers"] == gravac.MOST_WORKERS)]
    found = {row["row"]: row for row in lines(own)}
    if not {RESNET101, LSTM} <= found.keys():
        return ""
    resnet, lstm = found[RESNET101], found[LSTM]
    return (
        f"the order flips at {tie_compute_ms(resnet['sync_ms'], lstm['efficiency']):.0f} ms of compute of "
        f"ResNet101 (assumed {resnet['compute_ms']:g} ms, LSTM {lstm['compute_ms']:g} ms)"
    )


def _with_ties(
    verdicts: Sequence[tuple[Claim, Verdict]], frame: pd.DataFrame
) -> tuple[tuple[Claim, Verdict], ...]:
    """The verdicts, each with the compute time at which its order flips."""
    written, flips = [], order_flips_at(frame)
    for claim, verdict in verdicts:
        known = verdict.word != "not run" and flips
        detail = f"{verdict.detail}; {flips}" if known else verdict.detail
        written.append((claim, replace(verdict, detail=detail)))
    return tuple(written)


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished records of one scale; UserError if they are not alike."""
    require_one_study(records, ("study.networks", "study.workers", "study.latencies"))
    frame, latency = table_of(records), profile_latency(records)
    facts = {r.row: r for r in records}
    models = [
        (gravac.LABELS[model], f"{sizes(facts[model])}, {assumed_ms(facts[model])}")
        for model in MODELS
        if model in facts
    ]
    return Page(
        title="GraVAC, figure 1a: throughput against cluster size, relative to ideal, modelled",
        scale=scale,
        header=header(
            records,
            scale,
            [("sizes", "the paper's, at every scale"), *models, ("network", networks(records))],
        ),
        warning="",
        blocks=(
            _efficiency_block(curves(frame, latency)),
            _sensitivity_block(frame, latency),
        ),
        verdicts=_with_ties(
            judged(gravac.FIG1A_CLAIMS, values(frame, latency), scale, modelled=True),
            curves(frame, latency),
        ),
        notes=(),
        choices=gravac.FIGURE_CHOICES,
        numbers=tuple(
            {
                "model": row["row"],
                **{key: row[key] for key in ("network", "series", "latency_us", "workers")},
                **{key: row[key] for key in ("messages", "compute_ms", "sync_ms", "efficiency")},
            }
            for row in lines(frame)
        ),
    )


def _efficiency_block(frame: pd.DataFrame) -> Block:
    counts = sorted(frame["workers"].unique())
    rows = []
    for series, label in SERIES.items():
        for model in MODELS:
            own = frame[(frame["series"] == series) & (frame["row"] == model)]
            if own.empty:
                continue
            found = dict(zip(own["workers"], own["efficiency"], strict=True))
            last = own.sort_values("workers").iloc[-1]
            rows.append(
                (
                    label,
                    gravac.LABELS[model],
                    f"{last['messages']:.0f}",
                    f"{last['sync_ms']:.0f}",
                    *(f"{100 * found[count]:.1f}" for count in counts),
                )
            )
    return Block(
        "Throughput, % of ideal",
        "compute / (compute + communication): what N workers do over N times what one does. Modelled, "
        "without overlap. Per step: one allreduce of all tensors, as in the runs of Table II; the claims are "
        "judged by it. Per tensor: one allreduce for each. Sync: communication of a step at the most "
        "workers.",
        ("communication", "model", "messages", "sync ms", *(f"N = {count}" for count in counts)),
        tuple(rows),
        narrow=(0, 1, 3, *range(5, 4 + len(counts))),
    )


def _sensitivity_block(frame: pd.DataFrame, latency_us: float) -> Block:
    rows = []
    assumed = [f"{ms:g} ms" for ms in frame[frame["row"] == RESNET101]["compute_ms"].unique()]
    by_latency = [
        (SERIES[series], latency, group)
        for series in (PER_STEP, PER_TENSOR)
        for latency, group in groups(sensitivity(frame, series), "latency_us")
    ]
    for label, latency, group in by_latency:
        found = {row["row"]: row for row in lines(group)}
        efficiency = {m: found[m]["efficiency"] for m in MODELS if m in found}
        tie = "-"
        better = "-"
        if RESNET101 in found and LSTM in found:
            tie = f"{tie_compute_ms(found[RESNET101]['sync_ms'], efficiency[LSTM]):.0f}"
            better = "yes" if efficiency[LSTM] > efficiency[RESNET101] else "no"
        rows.append(
            (
                label,
                f"{latency:g}" + (" (profile)" if latency == latency_us else ""),
                *(f"{100 * efficiency[m]:.1f}" if m in efficiency else "-" for m in MODELS),
                better,
                tie,
            )
        )
    return Block(
        "How much rests on the latency between nodes",
        "% of ideal at the most workers, one allreduce per step and per tensor. Last: the compute time of "
        f"ResNet101, {', '.join(assumed) or '-'} assumed, above which it would scale better than the LSTM.",
        (
            "communication",
            "latency us",
            *(gravac.LABELS[model] for model in MODELS),
            "LSTM better",
            "tie at: ResNet101 ms",
        ),
        tuple(rows),
    )


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Left: efficiency by workers. Right: at the most workers, by latency."""
    frame, latency = table_of(records), profile_latency(records)
    shown = curves(frame, latency)
    latencies = sorted({float(value) for value in frame["latency_us"]})
    with style.house_style():
        drawing = Figure(figsize=(9.4, 4.4), layout="constrained")
        left, right = drawing.subplots(1, 2)
        for model in MODELS:
            colour, marker = LOOKS[model]
            for series, dashes in reversed(DASHES.items()):  # the judged one on top
                own = shown[(shown["row"] == model) & (shown["series"] == series)]
                left.plot(
                    own["workers"], 100 * own["efficiency"], color=colour, linestyle=dashes,
                    marker=marker, markersize=4, markerfacecolor="white" if dashes != "-" else colour,
                    label=gravac.LABELS[model] if dashes == "-" else None,
                )  # fmt: skip
            for series in (PER_TENSOR, PER_STEP):
                rest = sensitivity(frame, series)
                rest = rest[rest["row"] == model]
                right.plot(
                    [latencies.index(float(value)) for value in rest["latency_us"]],
                    100 * rest["efficiency"], color=colour, linestyle=DASHES[series], marker=marker,
                    markersize=4, markerfacecolor=colour if series == PER_STEP else "white",
                )  # fmt: skip
        for series, label in SERIES.items():
            left.plot([], [], color="#666666", linestyle=DASHES[series], label=label)
        right.axvline(latencies.index(latency), color=style.BLACK, linewidth=0.8)
        right.set_xticks(range(len(latencies)), [f"{value:g}" for value in latencies])
        right.set_xlabel("latency between nodes (us)")
        left.set_xscale("log", base=2)
        left.xaxis.set_major_locator(LogLocator(base=2))
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.set_xlabel("workers (log)")
        for axes in (left, right):
            axes.set_yscale("log")
            style.plain_log(axes.yaxis)
            axes.set_ylabel("throughput, % of ideal (log)")
        most = int(frame["workers"].max())
        style.title(
            left,
            "Throughput against cluster size",
            f"modelled, assumed compute; {scale_label(scale)}",
        )
        style.title(
            right,
            f"{most} workers, by latency",
            "per step and per tensor; line: the network's latency",
        )
        drawing.legend(loc="outside lower center", ncols=6)
    return drawing
