"""GraVAC's figure 11: Random-k, GraVAC with both gains against Accordion; which gain explains the figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_randomk as paper
from dgc_repro.paper.gravac import RESNET101
from dgc_repro.paper.gravac_factors import lead_of
from dgc_repro.paper.gravac_training import DENSE, FLOATS, QUALITY, row_id
from dgc_repro.report import style
from dgc_repro.report.figures import Look
from dgc_repro.report.gravac_course import Course, course
from dgc_repro.report.gravac_decisions import (
    branch_share,
    cell,
    column,
    csv_lines,
    draw_quality,
    header,
    heading,
    mean_of,
    panel,
    percent,
    shares,
    thinning,
    times,
)
from dgc_repro.report.gravac_factor_numbers import largest, lead, outcomes
from dgc_repro.report.gravac_pool import (
    Numbers,
    collect,
    judge,
    merged,
    method_of,
    metric_of,
    of_model,
    rows_of,
)
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, Page
from dgc_repro.report.verdict import Values

LOOKS = {
    DENSE: Look(style.BLACK, "o"),
    paper.ENERGY: Look(style.BLUE, "^"),
    paper.NORM: Look(style.ORANGE, "s"),
    paper.ACCORDION: Look(style.GREEN, "D"),
}
SHORT = {
    DENSE: "dense",
    paper.ENERGY: "energy gain",
    paper.NORM: "norm gain",
    paper.ACCORDION: "Accordion",
}
CHOSEN = (paper.ENERGY, paper.NORM)
COMPRESSED = "compresses most steps"


def _densest(run: Run) -> float:
    own = shares(run)
    return max(own, key=lambda factor: own[factor]) if own else math.nan


def numbers(one: Course) -> Numbers:
    """Everything that tables and claims say of these runs."""
    decided = [run for run in one.runs if method_of(run) in CHOSEN]
    found = collect(
        decided,
        {
            paper.DENSE_STEPS: lambda run: branch_share(run, "dense"),
            "gain_theta_min": lambda run: mean_of(column(run, "gain_theta_min")),
            "largest_factor": lambda run: largest(run, "factor"),
            "densest": _densest,
            lead_of(paper.DENSEST): lambda run: lead(run, paper.DENSEST),
        },
    )
    return merged(found, outcomes(one))


def explained(found: Values, method: str) -> dict[str, bool | None]:
    """Which findings of the figure a row shows: that it compresses, sends less than dense, and ends better
    than Accordion. None where a run is missing."""
    own, accordion = row_id(RESNET101, method), row_id(RESNET101, paper.ACCORDION)
    dense = row_id(RESNET101, DENSE)

    def mean(quantity: str, name: str) -> float:
        values = list(found.get(quantity, {}).get(name, {}).values())
        return sum(values) / len(values) if values else math.nan

    def known(*values: float, holds: bool) -> bool | None:
        return None if any(math.isnan(value) for value in values) else holds

    share = mean(paper.DENSE_STEPS, own)
    floats = mean(FLOATS, dense), mean(FLOATS, own)
    qualities = mean(QUALITY, own), mean(QUALITY, accordion)
    return {
        COMPRESSED: known(share, holds=share < 0.5),
        "sends at most half of dense": known(*floats, holds=2 * floats[1] <= floats[0]),
        "ends better than Accordion": known(*qualities, holds=qualities[0] > qualities[1]),
    }


def conclusion(found: Values) -> str:
    """Which gain explains the figure, from what was measured."""
    fits = {}
    for method in CHOSEN:
        shown = explained(found, method)
        if None in shown.values():
            return "Which gain explains the figure is unknown: a row was not run."
        fits[method] = all(shown.values())
    if fits[paper.NORM] and not fits[paper.ENERGY]:
        return (
            "The norm gain of the authors' code explains the figure. The printed energy gain does not: only "
            "with the norm gain does GraVAC show all findings."
        )
    if fits[paper.ENERGY] and not fits[paper.NORM]:
        return "The printed energy gain explains the figure, the norm gain does not, against the arithmetic."
    return f"{'Both gains explain' if all(fits.values()) else 'Neither gain explains'} the figure."


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if they are not alike."""
    own = _own(runs)
    found = numbers(replace(course(runs, RESNET101, scale), runs=tuple(own)))
    return Page(
        title="GraVAC, figure 11: ResNet101 with Random-k, GraVAC against Accordion",
        scale=scale,
        header=header(own, scale),
        warning="",
        blocks=(_which_block(found), _rows_block(own, found), _printed_block()),
        verdicts=judge(paper.CLAIMS, found, scale),
        notes=(paper.CANNOT_FOLLOW, paper.FROM_NORM),
        choices=paper.CHOICES,
        numbers=csv_lines(found),
    )


def _own(runs: Sequence[Run]) -> list[Run]:
    rows = [row_id(RESNET101, method) for method in LOOKS]
    return [run for run in of_model(runs, RESNET101) if run.row in rows]


def _which_block(found: Numbers) -> Block:
    words = {True: "yes", False: "no", None: "-"}
    both = [explained(found, method) for method in CHOSEN]
    return Block(
        "Which gain explains the figure",
        f"{conclusion(found)} Findings are those that the figure shows; means over seeds.",
        ("finding", *(SHORT[method] for method in CHOSEN)),
        tuple((what, *(words[shown[what]] for shown in both)) for what in both[0]),
    )


def _rows_block(runs: Sequence[Run], found: Numbers) -> Block:
    metric = metric_of(runs)
    lines = []
    for method, label in SHORT.items():
        name = row_id(RESNET101, method)
        chosen = method in CHOSEN
        most = found.get("densest", {}).get(name, {})
        lines.append(
            (
                label,
                str(len(rows_of(runs, name))),
                cell(found, QUALITY, name, 4),
                *(
                    (
                        percent(found, paper.DENSE_STEPS, name),
                        cell(found, "gain_theta_min", name),
                        cell(found, "largest_factor", name),
                        ", ".join(sorted({f"{f:g}x" for f in most.values()})) or "-",
                    )
                    if chosen
                    else ("-",) * 4
                ),
                times(found, "floats_reduction", name),
            )
        )
    return Block(
        "The rows",
        f"Of {thinning(runs)}: how many were dense, the mean "
        f"gain of theta_min ({paper.FACTORS[0]:g}x), the largest factor and the one of most steps. Less: "
        "floats against dense.",
        ("row", "n", metric.label.replace(" ", ": ", 1), "dense: steps", "gain: theta_min",
         "largest: factor", "most: steps", "less: floats"),
        tuple(lines),
    )  # fmt: skip


def _printed_block() -> Block:
    return Block(
        "Random-k's energy gain at the printed factors",
        f"It is 1/CF; eps is {paper.EPS:g}.",
        ("factor", "gain", "enough"),
        tuple(
            (f"{f:g}x", f"{paper.gain(f):.3f}", "yes" if paper.gain(f) >= paper.EPS else "no")
            for f in paper.FACTORS
        ),
    )


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """Left: quality by iteration. Right: the factor of each recorded step."""
    own = _own(runs)
    with style.house_style():
        drawing = Figure(figsize=(10.4, 4.6), layout="constrained")
        left, right = drawing.subplots(1, 2)
        metric = metric_of(own)
        looks = {row_id(RESNET101, m): (paper.LABELS[m], LOOKS[m]) for m in LOOKS}
        draw_quality(left, own, metric, looks)
        panel(left, f"{metric.label.capitalize()} by iteration")
        _draw_factors(right, own)
        heading(drawing, "ResNet101 with Random-k: GraVAC against Accordion", own, scale)
        handles, labels = left.get_legend_handles_labels()
        if handles:
            drawing.legend(handles, labels, loc="outside lower center", ncols=2)
    return drawing


def _draw_factors(axes: Axes, runs: Sequence[Run]) -> None:
    for method in CHOSEN:
        for run in rows_of(runs, row_id(RESNET101, method)):
            axes.plot(
                column(run, "step"), column(run, "factor"), color=LOOKS[method].colour,
                marker=".", linestyle="none", markersize=3,
            )  # fmt: skip
    axes.set_yscale("log")
    style.plain_log(axes.yaxis)
    axes.set_ylim(0.8, 2 * max((paper.FACTORS[-1], *(f for run in runs for f in shares(run)))))
    axes.set_xlabel("iteration")
    axes.set_ylabel("compression factor (log), 1 = dense")
    panel(axes, "Factor of each recorded step")
