"""GraVAC's figure 1b: how much gradients vary between workers over the starting iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dgc_repro.paper import gravac
from dgc_repro.paper.gravac_figures import (
    FIG1B_CHOICES,
    FIG1B_CLAIMS,
    FIRST,
    LAST,
    STARTING,
    TENTH,
    VARIANCE,
    part,
)
from dgc_repro.paper.gravac_training import MODEL_IDS, row_id
from dgc_repro.report import style
from dgc_repro.report.gravac_decisions import (
    at,
    cell,
    column,
    csv_lines,
    header,
    heading,
    mean_of,
    thinning,
)
from dgc_repro.report.gravac_pool import (
    Numbers,
    Series,
    judge,
    num_steps,
    of_model,
    rows_of,
)
from dgc_repro.report.records import Run
from dgc_repro.report.scaling import LOOKS
from dgc_repro.report.study import Block, Page


def variance(run: Run) -> tuple[Series, Series]:
    """The starting iterations that are recorded, and the variance of the gradient in each."""
    steps, spread = column(run, "step"), column(run, "own_square") - column(run, "mean_square")
    known = (steps <= at(run, STARTING)) & np.isfinite(spread)
    return steps[known], spread[known]


def numbers(runs: Sequence[Run]) -> Numbers:
    """Mean variance of the first and of the last tenth of the starting iterations."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        steps, spread = variance(run)
        if not steps.size:
            continue
        end, tenth = at(run, STARTING), TENTH * at(run, STARTING)
        for where, own in ((FIRST, steps <= tenth), (LAST, steps > end - tenth)):
            if own.any():
                found.setdefault(part(run.row, where), {})[run.seed] = mean_of(spread[own])
    return {"variance": found}


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if those of a model are not alike."""
    own = [
        run
        for model in MODEL_IDS
        for run in rows_of(of_model(runs, model), row_id(model, VARIANCE))
    ]
    found = numbers(own)
    return Page(
        title="GraVAC, figure 1b: variance of gradients over the starting iterations",
        scale=scale,
        header=header(own, scale),
        warning="",
        blocks=(_block(own, found),),
        verdicts=judge(FIG1B_CLAIMS, found, scale),
        notes=(),
        choices=FIG1B_CHOICES,
        numbers=csv_lines(found),
    )


def _block(runs: Sequence[Run], found: Numbers) -> Block:
    rows = []
    for model in MODEL_IDS:
        name = row_id(model, VARIANCE)
        own = rows_of(runs, name)
        steps = f"{num_steps(own[0]):,}" if own else "-"
        start = f"{at(own[0], STARTING):,.0f}" if own else "-"
        tenths = (cell(found, "variance", part(name, where)) for where in (FIRST, LAST))
        rows.append((gravac.LABELS[model], str(len(own)), steps, start, *tenths))
    return Block(
        "Variance of the gradient",
        "Mean over workers of ||g_i||^2 less ||mean g||^2, all tensors together, dense training; of "
        f"{thinning(runs)}. Norms of different models are not comparable.",
        ("model", "n", "steps", "starting", "first tenth", "last tenth"),
        tuple(rows),
    )


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """The variance by iteration, on a log axis."""
    with style.house_style():
        drawing = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = drawing.subplots()
        own = [run for run in runs if run.row in {row_id(m, VARIANCE) for m in MODEL_IDS}]
        for model in MODEL_IDS:
            colour, _ = LOOKS[model]
            for number, run in enumerate(rows_of(own, row_id(model, VARIANCE))):
                steps, spread = variance(run)
                label = gravac.LABELS[model] if number == 0 else None
                axes.plot(steps, spread, color=colour, linewidth=1.0, alpha=0.9, label=label)
        axes.set_yscale("log")
        style.plain_log(axes.yaxis)
        axes.set_xlabel("iteration")
        axes.set_ylabel("variance over workers (log)")
        heading(drawing, "Variance of the gradient, starting iterations", own, scale)
        if axes.lines:
            drawing.legend(loc="outside lower center", ncols=3)
    return drawing
