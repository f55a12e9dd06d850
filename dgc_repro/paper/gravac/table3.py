"""GraVAC's Table III: compressing a gradient to 10x and to 1000x, direct against multi-level.

Set-up as printed: NVIDIA V100; every tensor is compressed by itself. Direct compresses the gradient to both
factors; multi-level compresses it to 10x and compresses what is left to 1000x. A seed of the frame is a
repeat here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim, Note, printed_table
from dgc_repro.paper.frame import Column, Known, Values, lines, of, pivot
from dgc_repro.paper.gravac import COMPRESSORS, MODELS, PARAMETERS
from dgc_repro.paper.gravac.shared import sooner_by
from dgc_repro.paper.gravac.studies import head, labels
from dgc_repro.paper.page import Page, Section, Template, made
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
TABLE_3 = printed_table(
    "Table III",
    "direct [ms], multilevel [ms], speedup [x]",
    """
    resnet101.topk      606    332   1.83
    resnet101.dgc        90     59   1.52
    resnet101.redsync    33   29.8   1.1
    resnet101.randomk    23     14   1.64
    vgg16.topk          181    121   1.49
    vgg16.dgc           122   95.5   1.27
    vgg16.redsync     101.4   87.7   1.16
    vgg16.randomk      41.6     31   1.34
    lstm.topk           200    126   1.59
    lstm.dgc             88     63   1.4
    lstm.redsync       69.4   46.4   1.5
    lstm.randomk       56.4   37.4   1.5
    """,
)
WORDS = Template.read(__file__)


def cell(model: str, method: str, block: str = "layerwise") -> str:
    """The row of a model and method; ``.<way>`` behind it is the row of that way's repeats."""
    return f"{model}.{method}{BLOCKS[block]}"


def _over(row: str, slow: str, quick: str) -> Check:
    """A way takes longer than another one."""
    return Check(TIME, f"{row}.{slow}", f"{row}.{quick}", above=1.0, ratio=True)


def _claims() -> Iterator[Claim]:
    for row, (direct, multilevel, speedup) in TABLE_3.rows.items():
        model, _, method = row.partition(".")
        say = partial(WORDS.claim, of=row, called=f"{MODELS[model]}, {COMPRESSORS[method]}")
        faster = _over(row, DIRECT, MULTILEVEL)
        yield say("faster", faster)
        printed = {"speedup": speedup, "direct": direct, "multilevel": multilevel}
        yield say("magnitude", sooner_by(faster, speedup), ours=True, **printed)
    for model, called in MODELS.items():
        row = cell(model, "topk")
        say = partial(WORDS.claim, of=row, model=called)
        rows = (cell(model, "topk", block) for block in BLOCKS)
        none = [Check(APART, each, above=-HALF, below=HALF) for each in rows]
        yield say("equal", *none, by_construction=True)
        yield say("latency", Check(TIME, f"{row}.{WEAK}", f"{row}.{STRONG}"))
        yield say("single_pass", _over(row, MULTILEVEL, SINGLE_PASS), ours=True)


CLAIMS = tuple(_claims())


def _notes() -> tuple[Note, ...]:
    speedups = [TABLE_3(row, SPEEDUP) for row in TABLE_3.rows]
    times = {model: TABLE_3(cell(model, "topk"), DIRECT) for model in MODELS}
    sizes = (
        f"{MODELS[m]} {ms:g} ms for {PARAMETERS[m] / 1e6:.1f} M values, "
        f"{1e6 * ms / PARAMETERS[m]:.1f} ns each"
        for m, ms in times.items()
    )
    return WORDS.noted(least=min(speedups), most=max(speedups), sizes="; ".join(sizes))


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
    hardware, sizes = (
        facts.distinct(values)
        for values in ((run.environment.get("hardware") for run in own), map(facts.model_text, own))
    )
    busy = ", busy machine" if facts.busy(own) else ""
    said = f"{facts.scale_text(scale)}, {sizes}, {hardware}{busy}, n = {_repeats(own)}"
    drawn = _panels(frame, rows)
    return made(
        __file__, scale, own, frame, _sections(frame, rows, known), CLAIMS, labels=rows | ways,
        facts=head(own, scale, _more(own)), printed=known, notes=_notes(), warning=facts.busy(own),
        figures={
            "table3": lambda: plot.figure("GraVAC, Table III", said, drawn, size=(5.2, 5.0), legend=3)
        },
    )  # fmt: skip


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


def _speedup(values: Values) -> str:
    """Geometric mean and interval."""
    if not values:
        return "-"
    mean, low, high = interval(values, ratio=True)
    return f"{mean:.2f}x [{low:.2f}, {high:.2f}]"


def _sections(frame: pd.DataFrame, rows: Mapping[str, str], known: Known) -> list[Section]:
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


def _quartiles(values: Values) -> Any:
    return np.quantile(values, [0.5, 0.25, 0.75])


def _panels(frame: pd.DataFrame, rows: Mapping[str, str]) -> list[panels.Panel]:
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
    strip = partial(panels.strip, markersize=5)
    times = [
        strip([of(frame, COPIES, f"{row}.{way}") for row in shown], _quartiles, look, aside=shift)
        for shift, (way, look) in zip((-0.22, 0.0, 0.22), timed.items(), strict=True)
    ]
    ratios = partial(interval, ratio=True)
    speedups = [
        strip([of(frame, SPEEDUP, f"{row}{end}") for row in shown], ratios, look, aside=shift)
        for shift, look, end in zip((0.15, 0.35), gained, BLOCKS.values(), strict=True)
    ]
    printed = [TABLE_3(row, SPEEDUP) for row in shown], range(len(shown))
    cross = {"color": plot.BLACK, "marker": "x", "linestyle": "none"}
    by_row = partial(panels.panel, ylim=(len(shown) - 0.4, -0.6), grid="x")
    return [
        by_row(
            "compressing to 10x and to 1000x", *times, log="x",
            x="time in multiples of a copy_ of the gradient",
            yticks={place: rows[row] for place, row in enumerate(shown)},
        ),
        by_row(
            "speedup of multi-level", panels.rule("x", 1.0),
            panels.lines([printed], "speedup, paper (V100)", **cross), *speedups,
            x="time of direct / time of multi-level", yticks=dict.fromkeys(range(len(shown)), ""),
        ),
    ]  # fmt: skip
