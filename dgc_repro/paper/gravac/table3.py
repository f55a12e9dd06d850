"""GraVAC's Table III: compressing a gradient to 10x and to 1000x, direct against multi-level.

Set-up as printed: NVIDIA V100; every tensor is compressed by itself. Direct compresses the gradient to both
factors; multi-level compresses it to 10x and compresses what is left to 1000x. A seed of the frame is a
repeat here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim, Note, Printed
from dgc_repro.paper.frame import Column, Known, Values, lines, of, pivot
from dgc_repro.paper.gravac import COMPRESSORS, LSTM, MODELS, PARAMETERS, RESNET101, VGG16
from dgc_repro.paper.gravac.shared import sooner_by
from dgc_repro.paper.gravac.studies import head, labels
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike
from dgc_repro.paper.statistics import interval

DIRECT, MULTILEVEL, SPEEDUP = "direct", "multilevel", "speedup"
WEAK, STRONG, SINGLE_PASS = "weak", "strong", "single_pass"
WAYS = {
    WEAK: "10x alone", DIRECT: "direct", MULTILEVEL: "multi-level", SINGLE_PASS: "single pass",
    STRONG: "1000x alone",
}  # fmt: skip
"""The first four are timed; the last is direct less the first. Single pass is ours."""
MEDIAN = {way: f"{name}, median ms" for way, name in WAYS.items()}
BLOCKS = {"layerwise": "", "one vector": ", one vector"}
"""By tensor, as the paper; and, ours, the whole gradient as one vector. By block, the end of the row."""
TIME, COPIES, APART = "compression time", "compression time in copies", "entries apart"
CHOSEN = {
    "strong_asked": "1000x: asked", "direct_kept": "direct", "multilevel_kept": "multi-level",
    "multilevel_apart": APART, "single_pass_kept": "single pass", "single_pass_apart": "single pass apart",
}  # fmt: skip
_measure = ("factors", "repeats", "steps")
ALIKE = ("scale.name", "seed", "launch.threads", *(f"measure.{name}" for name in _measure))
HALF = 0.5


def cell(model: str, method: str, block: str = "layerwise") -> str:
    """The row of a model and method; ``.<way>`` behind it is the row of that way's repeats."""
    return f"{model}.{method}{BLOCKS[block]}"


_printed = {
    RESNET101: (606, 332, 1.83, 90, 59, 1.52, 33, 29.8, 1.1, 23, 14, 1.64),
    VGG16: (181, 121, 1.49, 122, 95.5, 1.27, 101.4, 87.7, 1.16, 41.6, 31, 1.34),
    LSTM: (200, 126, 1.59, 88, 63, 1.4, 69.4, 46.4, 1.5, 56.4, 37.4, 1.5),
}
TABLE_3 = Printed(
    "Table III",
    {DIRECT: "ms", MULTILEVEL: "ms", SPEEDUP: "x"},
    {
        cell(model, method): numbers[3 * place : 3 * place + 3]
        for model, numbers in _printed.items()
        for place, method in enumerate(COMPRESSORS)
    },
)


def _claims(model: str, method: str) -> Iterator[Claim]:
    row, name = cell(model, method), f"{MODELS[model]}, {COMPRESSORS[method]}"
    direct, multilevel, speedup = TABLE_3.rows[row]
    faster = Check(TIME, f"{row}.{DIRECT}", f"{row}.{MULTILEVEL}", above=1.0, ratio=True)
    yield Claim(
        f"{row}.faster", f"{name}: multi-level compression is faster than direct.", "Table III",
        (faster,),
        "Time of compressing to both factors directly over that of multi-level, layerwise: geometric mean of "
        "the quotients of n paired repeats, with its interval. The repeats vary by the timing noise of one "
        "process on this machine alone.",
    )  # fmt: skip
    yield Claim(
        f"{row}.magnitude",
        f"{name}: by {speedup:g}x ({direct:g} ms direct, {multilevel:g} ms multi-level on a V100).",
        "Table III",
        (sooner_by(faster, speedup),),
        "The same quotient, within half of the printed gain (speedup - 1). Milliseconds are never compared: "
        "the hardware differs, and our kernels are not the paper's.",
        margin=OURS,
    )


def _topk_claims(model: str) -> Iterator[Claim]:
    row, name = cell(model, "topk"), MODELS[model]
    yield Claim(
        f"{row}.equal", f"{name}, Top-k: multi-level chooses exactly what direct compression chooses.",
        "multi-level compression",
        tuple(Check(APART, cell(model, "topk", block), above=-HALF, below=HALF) for block in BLOCKS),
        "Entries at 1000x that only one of the two has, or that differ in value; none may be. It is an "
        "identity of exact Top-k: only a defect could break it.",
        by_construction=True,
    )  # fmt: skip
    yield Claim(
        f"{row}.latency", f"{name}: the latency of Top-k falls with the compression factor.",
        "text", (Check(TIME, f"{row}.{WEAK}", f"{row}.{STRONG}"),),
        "Milliseconds of compressing to 10x less those of compressing to 1000x, layerwise, paired by repeat. "
        "The latter are direct less 10x alone: 1000x follows on 10x tensor by tensor and may find the tensor "
        "in the cache. More factors: figure 3, of DGC.",
    )  # fmt: skip
    yield Claim(
        f"{row}.single_pass", f"{name}, Top-k: one scan for both factors is faster than multi-level.",
        EXPECTED,
        (Check(TIME, f"{row}.{MULTILEVEL}", f"{row}.{SINGLE_PASS}", above=1.0, ratio=True),),
        "Time of multi-level over that of the single pass, layerwise, paired by repeat.",
        margin=OURS,
    )  # fmt: skip


CLAIMS = (
    *(claim for model in MODELS for method in COMPRESSORS for claim in _claims(model, method)),
    *(claim for model in MODELS for claim in _topk_claims(model)),
)


def _notes() -> Iterator[Note]:
    speedups = [TABLE_3(row, SPEEDUP) for row in TABLE_3.rows]
    yield Note(
        "Not a contradiction: what multi-level compression can gain at most.",
        "Time in proportion to the values that are read, whatever the factor, gives 2 / (1 + 1/10) = "
        f"{2 / (1 + 1 / 10):.2f}; printed {min(speedups):g} to {max(speedups):g}. A method whose second "
        "compression is cheaper than its first gains less.",
    )
    times = {model: TABLE_3(cell(model, "topk"), DIRECT) for model in MODELS}
    yield Note(
        "Top-k takes longest on the smallest model: its time does not follow from the size.",
        "; ".join(
            f"{MODELS[m]} {ms:g} ms for {PARAMETERS[m] / 1e6:.1f} M values, {1e6 * ms / PARAMETERS[m]:.1f} "
            "ns each"
            for m, ms in times.items()
        )
        + ".",
    )  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    own = of_rows(runs, MODELS)
    names = labels(own)
    rows = {
        cell(model, method, block): f"{names[model]}, {label}{BLOCKS[block]}"
        for block in BLOCKS
        for model in MODELS
        for method, label in COMPRESSORS.items()
    }
    frame = lines(line for run in own for line in _numbers(run))
    ways = {
        f"{row}.{way}": f"{label}, {name}"
        for row, label in rows.items()
        for way, name in WAYS.items()
    }
    columns = {DIRECT: MEDIAN[DIRECT], MULTILEVEL: MEDIAN[MULTILEVEL], SPEEDUP: SPEEDUP}
    known = frames.printed_numbers(TABLE_3, columns)
    return made(
        __file__,
        scale,
        own,
        frame,
        _sections(frame, rows, known),
        CLAIMS,
        labels=rows | ways,
        facts=head(own, scale, _more(own)),
        printed=known,
        notes=tuple(_notes()),
        warning=facts.busy(own),
        figures={"table3": partial(_figure, frame, rows, _caption(own, scale))},
    )


def _numbers(run: Run) -> Iterator[dict[str, Any]]:
    """Repeats of each way and of their speedup, medians, and what was chosen."""
    for (block, method), repeats in run.lines.groupby(["block", "method"], sort=False):
        row = cell(run.row, str(method), str(block))
        times = {way: repeats[f"{way}_ms"] for way in WAYS if way != STRONG}
        times[STRONG] = times[DIRECT] - times[WEAK]
        series = [(row, SPEEDUP, "x", times[DIRECT] / times[MULTILEVEL])]
        for way, values in times.items():
            yield _line(row, run.seed, MEDIAN[way], "ms", np.median(values))
            series.append((f"{row}.{way}", TIME, "ms", values))
            series.append((f"{row}.{way}", COPIES, "copies", values / repeats["copy_ms"]))
        for name, quantity, unit, values in series:
            for repeat, value in zip(repeats["repeat"].astype(int), values, strict=True):
                yield _line(name, repeat, quantity, unit, value)
    for entry in run.summary.get("chosen", ()):
        row = cell(run.row, entry["method"], entry["block"])
        for key, name in CHOSEN.items():
            yield _line(row, run.seed, name, "entries", entry.get(key))


def _line(row: str, seed: int, quantity: str, unit: str, value: Any) -> dict[str, Any]:
    fixed = {"row": row, "seed": seed, "clock": "measured" if unit == "ms" else ""}
    return {**fixed, "quantity": quantity, "unit": unit, "value": value}


def _more(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Gradients, device and repeats, for the head of the page."""
    gradients = (
        f"{run.row} {run.environment.get('data')}, step {run.summary['steps']}, norm "
        f"{run.summary['gradient_norm']:.3g}"
        for run in runs
    )
    device, threads, kernels = (
        facts.distinct(run.environment.get(name) for run in runs)
        for name in ("device", "threads_per_worker", "kernels")
    )
    return [
        ("gradients", "; ".join(gradients)),
        ("device", f"{device}, {threads} threads, kernels: {kernels}; the paper's: V100"),
        ("n", f"{_repeats(runs)} of each way and block, after 2 that are not counted"),
    ]


def _repeats(runs: Sequence[Run]) -> str:
    return f"{facts.distinct(run.setting('measure.repeats') for run in runs)} repeats"


def _caption(runs: Sequence[Run], scale: str) -> str:
    hardware = facts.distinct(run.environment.get("hardware") for run in runs)
    busy = ", busy machine" if facts.busy(runs) else ""
    sizes = facts.distinct(facts.model_text(run) for run in runs)
    return f"{facts.scale_text(scale)}, {sizes}, {hardware}{busy}, n = {_repeats(runs)}"


def _speedup(values: Values) -> str:
    """Geometric mean and interval."""
    if not values:
        return "-"
    mean, low, high = interval(values, ratio=True)
    return f"{mean:.2f}x [{low:.2f}, {high:.2f}]"


def _sections(frame: pd.DataFrame, rows: dict[str, str], known: Known) -> list[Section]:
    times = [Column(SPEEDUP, SPEEDUP, _speedup, "", known, "x")]
    for way in (DIRECT, MULTILEVEL, WEAK, SINGLE_PASS):
        beside = known if way in TABLE_3.columns else None
        times.append(Column(MEDIAN[way], MEDIAN[way], printed=beside))
    counts = [
        Column(name, name, lambda values: f"{values[0]:,.0f}" if values else "-")
        for name in CHOSEN.values()
    ]
    return [
        Section("Table III", pivot(frame, rows, times, first="model, method")),
        Section("Entries chosen", pivot(frame, rows, counts, first="model, method")),
    ]


def _figure(frame: pd.DataFrame, rows: dict[str, str], caption: str) -> Figure:
    """Left: layerwise time in multiples of a copy. Right: speedup, ours and the paper's."""
    shown = list(TABLE_3.rows)
    timed = {
        DIRECT: Look("direct (median, middle half)", plot.ORANGE, "s"),
        MULTILEVEL: Look("multi-level", plot.BLUE, "o"),
        SINGLE_PASS: Look("single pass", plot.GREEN, "^"),
    }
    gained = (
        Look("speedup, layerwise (95 % interval)", plot.BLUE, "o"),
        Look("speedup, one vector", plot.PURPLE, "D"),
    )

    def left(axes: Axes) -> None:
        for shift, (way, look) in zip((-0.22, 0.0, 0.22), timed.items(), strict=True):
            found = [of(frame, COPIES, f"{row}.{way}") for row in shown]
            _whiskers(axes, found, lambda v: np.quantile(v, [0.5, 0.25, 0.75]), shift, look)
        plot.name_axes(axes, "time in multiples of a copy_ of the gradient", "", "x")
        axes.set_yticks(range(len(shown)), [rows[row] for row in shown])

    def right(axes: Axes) -> None:
        axes.axvline(1.0, color=plot.BLACK, linewidth=0.8)
        printed = [TABLE_3(row, SPEEDUP) for row in shown]
        axes.plot(printed, range(len(shown)), "x", color=plot.BLACK, label="speedup, paper (V100)")
        for shift, look, end in zip((0.15, 0.35), gained, BLOCKS.values(), strict=True):
            found = [of(frame, SPEEDUP, f"{row}{end}") for row in shown]
            _whiskers(axes, found, partial(interval, ratio=True), shift, look)
        plot.name_axes(axes, "time of direct / time of multi-level")
        axes.set_yticks(range(len(shown)), [])

    panels = [("compressing to 10x and to 1000x", left), ("speedup of multi-level", right)]
    return plot.figure("GraVAC, Table III", caption, panels, size=(5.2, 5.0), legend=3)


def _whiskers(
    axes: Axes, rows: Sequence[list[float]], span: Callable[[Values], Any], shift: float, look: Look
) -> None:
    """``span``, (middle, low, high), of the numbers of each row; the first row on top."""
    found = {place + shift: span(values) for place, values in enumerate(rows) if values}
    middle, low, high = np.array(list(found.values())).reshape(-1, 3).T
    axes.errorbar(
        middle, list(found), xerr=[middle - low, high - middle], color=look.colour, marker=look.marker,
        markersize=5, linestyle="none", label=look.label,
    )  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
