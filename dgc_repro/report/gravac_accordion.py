"""GraVAC's Table IV: what GraVAC and Accordion send, and what the one saves over the other.

The printed floats of Accordion contradict its ranks: the arithmetic stands beside the table, with our own
runs in the same units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_accordion as paper
from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report import style
from dgc_repro.report.gravac_course import (
    MEASURED,
    MODELLED,
    WORKERS_HERE,
    Course,
    clocked,
    clocks_text,
    course,
    n_label,
    numbers,
    shown_clocks,
)
from dgc_repro.report.gravac_pool import (
    UNITS,
    Numbers,
    csv_line,
    judge,
    merged,
    num_steps,
    pool_header,
    quality,
    quotients,
    written,
)
from dgc_repro.report.gravac_setup import setup_block
from dgc_repro.report.gravac_volume import of_row
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, Page, scale_label

METHODS = (printed.DENSE, printed.ACCORDION, printed.GRAVAC)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if those of a model are not alike."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    found = merged(*(numbers(one) for one in courses))
    clocks = shown_clocks(courses)
    return Page(
        title="GraVAC, Table IV: GraVAC against Accordion",
        scale=scale,
        header=pool_header([run for one in courses for run in one.runs], scale),
        warning="",
        blocks=(
            _savings_block(courses, found, clocks),
            _sent_block(courses),
            _arithmetic_block(courses),
            setup_block(courses),
        ),
        verdicts=judge(paper.CLAIMS, found, scale),
        notes=tuple(paper.CONTRADICTIONS.values()),
        choices=paper.CHOICES,
        numbers=tuple(line for one in courses for line in _lines(one, found, clocks)),
    )


def savings(model: str, found: Numbers, clocks: Sequence[str]) -> dict[str, list[float]]:
    """Accordion over GraVAC, by seed: floats, payload, wire, and seconds of the whole run by clock."""
    rows = (printed.row_id(model, printed.ACCORDION), printed.row_id(model, printed.GRAVAC))
    names = {**{word: unit for unit, word in UNITS.items()},
             **{clock: clocked(printed.RUN_SECONDS, clock) for clock in clocks}}  # fmt: skip
    return {word: quotients(found, quantity, *rows) for word, quantity in names.items()}


def _savings_block(courses: Sequence[Course], found: Numbers, clocks: Sequence[str]) -> Block:
    rows = []
    for one in courses:
        ours = savings(one.model, found, clocks)
        cells = {word: written(values, "x") for word, values in ours.items()}
        rows.append(
            (
                *(LABELS[one.model], str(len(ours["floats"]))),
                *(f"{paper.printed(one.model, 'communication'):g}x", cells["floats"]),
                *(cells["payload"], cells["wire"]),
                *(f"{paper.printed(one.model, 'time'):g}x", *(cells[clock] for clock in clocks)),
            )
        )
    return Block(
        "What GraVAC saves: Accordion over GraVAC",
        "Paired by seed, of whole runs of as many steps; below 1x Accordion sends less, or is faster. "
        f"Communication in three units, of which the paper prints floats. Time: {clocks_text(clocks)}",
        (
            *("model", "n", "floats: paper", "ours", "payload", "wire"),
            *("time: paper", *clocks),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5, 6, 7),
    )


def _sent_block(courses: Sequence[Course]) -> Block:
    """What one worker sends of each row, a step."""
    rows = []
    for one in courses:
        for method in METHODS:
            own = one.of(method)
            parameters = [float(run.summary.get("parameters", math.nan)) for run in own]
            floats = [_a_step(run, "comm/floats") for run in own]
            known = method != printed.DENSE
            rows.append(
                (
                    *(LABELS[one.model], printed.METHOD_LABELS[method], str(len(own))),
                    paper.floats(paper.printed(one.model, method)) if known else "-",
                    *(_amount([float(run.epochs["comm/floats"].iloc[-1]) for run in own]),),
                    *(_amount(floats),),
                    written([n / f for n, f in zip(parameters, floats, strict=True)], "x"),
                    *(_amount([_a_step(run, f"comm/{unit}") for run in own])
                      for unit in ("payload_bytes", "wire_bytes")),
                    written([float(quality(run, one.metric)[-1]) for run in own], decimals=2),
                )
            )  # fmt: skip
    return Block(
        "What one worker sends",
        "Floats of the whole run (the paper's count values only), and a step: floats, the factor by which "
        "they are fewer than the model's values, payload and wire bytes. Final: test metric after the last "
        "epoch.",
        (
            *("model", "method", "n", "floats: paper", "ours", "a step", "factor"),
            *("payload a step", "wire a step", "final"),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5, 6, 9),
    )


def _a_step(run: Run, column: str) -> float:
    return float(run.epochs[column].iloc[-1]) / num_steps(run)


def _amount(values: Sequence[float]) -> str:
    """The mean with three digits; runs of a row differ by what a policy chose alone."""
    return paper.floats(float(np.mean(values))) if values else "-"


def _arithmetic_block(courses: Sequence[Course]) -> Block:
    """Why the printed floats cannot come from ranks 1 and 4; our Accordion's factor beside it."""
    rows = []
    for one in courses:
        found, factors = paper.steps_of(one.model), paper.RANK_FACTORS[one.model]
        ours = [
            float(run.summary["parameters"]) / _a_step(run, "comm/floats")
            for run in one.of(printed.ACCORDION)
            if run.summary.get("parameters")
        ]
        rows.append(
            (
                LABELS[one.model],
                paper.floats(paper.printed(one.model, printed.GRAVAC)),
                f"{printed.REDUCTIONS[one.model][printed.GRAVAC]:g}x",
                f"{found.steps:,.0f}",
                f"{found.accordion_floats / 1e6:.1f} M",
                f"{found.factor:.1f}",
                *(f"{factors[rank]}" for rank in (paper.WEAK_RANK, paper.STRONG_RANK)),
                written(ours),
            )
        )
    return Block(
        "Accordion's printed floats, a step",
        "GraVAC's floats times its reduction against dense are what dense would have sent; over the "
        "parameters that makes the steps, over which Accordion's floats are that many a step: its factor "
        f"lies under both of its ranks' by far. Rank {paper.WEAK_RANK} and rank {paper.STRONG_RANK}: of "
        "models of the printed sizes. Ours: Accordion as run here, between its own ranks, on our models.",
        (
            *("model", "GraVAC floats", "reduction", "steps", "Accordion a step", "factor"),
            *(f"rank {paper.WEAK_RANK}", f"rank {paper.STRONG_RANK}", "ours"),
        ),
        tuple(rows),
        narrow=(0, 2, 3, 4, 5, 6, 7, 8),
    )


def _lines(one: Course, found: Numbers, clocks: Sequence[str]) -> list[dict[str, Any]]:
    """One line a number, for table.csv."""
    lines = []
    for method in METHODS:
        for unit in UNITS:
            is_printed = unit == "floats" and method != printed.DENSE
            values = list(of_row(found, unit, one.model, method).values())
            paper_value = paper.printed(one.model, method) if is_printed else None
            lines.append(csv_line(one.model, method, unit, unit, values, paper_value))
        for clock in clocks:
            name = clocked(printed.RUN_SECONDS, clock)
            values = list(of_row(found, name, one.model, method).values())
            lines.append(csv_line(one.model, method, f"run_seconds, {clock}", "s", values))
    prints = {"floats": "communication", **dict.fromkeys(clocks, "time")}
    for word, values in savings(one.model, found, clocks).items():
        known = paper.printed(one.model, prints[word]) if word in prints else None
        method = f"{printed.ACCORDION} / {printed.GRAVAC}"
        lines.append(csv_line(one.model, method, f"saving, {word}", "x", values, known))
    return lines


LOOKS = {
    "floats": (style.BLUE, "o"), "payload": (style.ORANGE, "s"), "wire": (style.GREEN, "^"),
    MODELLED: (style.PURPLE, "D"), WORKERS_HERE: (style.YELLOW, "P"), MEASURED: (style.SKY, "v"),
}  # fmt: skip
"""Colour and marker of a unit, or of a clock."""


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """Left: communication saving by unit, the paper's beside ours. Right: time saving by clock."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    found = merged(*(numbers(one) for one in courses))
    clocks = shown_clocks(courses)
    ours = {one.model: savings(one.model, found, clocks) for one in courses}
    counts = [len(saved["floats"]) for saved in ours.values()]
    bars = "; bars: one standard deviation" if max(counts) > 1 else ""
    with style.house_style():
        drawing = Figure(figsize=(9.2, 3.8), layout="constrained")
        sides = (("communication", tuple(UNITS.values())), ("time", clocks))
        handles: dict[str, Any] = {}
        for axes, (column, words) in zip(drawing.subplots(1, 2), sides, strict=True):
            _draw(axes, column, words, ours)
            axes.set_yticks(range(len(courses)), [LABELS[one.model] for one in courses])
            axes.set_ylim(len(courses) - 0.3, -0.4)
            handles |= {
                label: h for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
        drawing.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=7)
        drawing.suptitle(
            f"Table IV: what GraVAC saves over Accordion ({scale_label(scale)}, {n_label(counts)}{bars})",
            x=0.01, ha="left", fontsize=9.5,
        )  # fmt: skip
    return drawing


def _draw(
    axes: Axes, column: str, words: Sequence[str], ours: Mapping[str, Mapping[str, Sequence[float]]]
) -> None:
    """One side: a line a model, the paper's mark and below it ours."""
    for place, model in enumerate(ours):
        axes.plot(
            paper.printed(model, column), place, color=style.BLACK, marker="x",
            markersize=7, linestyle="none", label="paper" if place == 0 else None,
        )  # fmt: skip
    for number, word in enumerate(words):
        colour, marker = LOOKS[word]
        for place, saved in enumerate(ours.values()):
            if values := saved[word]:
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                axes.errorbar(
                    float(np.mean(values)), place + 0.16 * (number + 1), xerr=spread, color=colour,
                    marker=marker, linestyle="none", elinewidth=0.8,
                )  # fmt: skip
        axes.plot([], [], color=colour, marker=marker, linestyle="none", label=word)
    axes.axvline(1.0, color=style.BLACK, linewidth=0.8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 500 * low else (1.0, 3.0)
    style.plain_log(axes.xaxis, subs, unit="x")
    axes.set_xlabel(f"{column} saving: Accordion / GraVAC (log)")
