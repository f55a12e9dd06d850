"""GraVAC's figures 7 to 10: convergence, which factors were used, and throughput of compression by factor.

Rows are compared by seed: dense runs of seeds that no other row has set the target, and are not shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac
from dgc_repro.paper.claim import Claim, Contradiction
from dgc_repro.paper.gravac_factors import (
    FACTOR_CHOICES,
    FACTOR_CLAIMS,
    FIGURE,
    GEOMETRIC,
    GEOMETRIC_CLAIMS,
    GEOMETRIC_FIGURE,
    GEOMETRIC_NOTES,
    NORM,
    SHORT,
    SWEEP,
    VARIANTS,
    named,
    norm_claims,
)
from dgc_repro.paper.gravac_training import (
    DENSE,
    GRAVAC,
    GRAVAC_STRICT,
    row_id,
)
from dgc_repro.report import gravac_regret_figure, style
from dgc_repro.report.figures import Look
from dgc_repro.report.gravac_course import course
from dgc_repro.report.gravac_decisions import (
    column,
    csv_lines,
    draw_quality,
    gains_block,
    header,
    heading,
    panel,
    shares,
)
from dgc_repro.report.gravac_factor_blocks import (
    branch_block,
    decay_block,
    factor_block,
    sweep_block,
    throughput_block,
    variant_block,
    volume_block,
)
from dgc_repro.report.gravac_factor_numbers import (
    BANDWIDTH,
    density,
    numbers,
    samples_label,
    throughput,
)
from dgc_repro.report.gravac_pool import (
    compared,
    judge,
    merged,
    metric_of,
    of_model,
    rows_of,
)
from dgc_repro.report.gravac_regret import regret_block
from dgc_repro.report.records import Run
from dgc_repro.report.study import Page

LOOKS = {
    DENSE: Look(style.BLACK, "o"),
    GRAVAC: Look(style.BLUE, "^"),
    GRAVAC_STRICT: Look(style.ORANGE, "s"),
    GEOMETRIC: Look(style.GREEN, "D"),
}
LOOKS |= {norm: replace(LOOKS[method], dashes="--") for method, norm in NORM.items()}
BESIDE = 3.0 * BANDWIDTH
"""How far beyond the factors the density is drawn, in log10."""


@dataclass(frozen=True)
class Factors:
    """The page and the figure of some of a model's methods. ``printed``: those of the paper's figure, dense
    not among them; each is drawn with both gains. ``variants``, ``sweep``: others that have a table."""

    number: int
    model: str
    printed: tuple[str, ...]
    claims: tuple[Claim, ...]
    notes: tuple[Contradiction, ...] = ()
    variants: tuple[str, ...] = ()
    sweep: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The rows that are drawn: with the energy gain, then with the norm gain."""
        return (*self.printed, *(NORM[method] for method in self.printed))

    @property
    def rows(self) -> dict[str, str]:
        """Their labels in a table, by row."""
        return {row_id(self.model, method): SHORT[method] for method in self.methods}

    @property
    def title(self) -> str:
        """What it shows."""
        label = gravac.LABELS[self.model]
        return f"GraVAC, figure {self.number}: {label}, convergence and compression factors"

    def own(self, runs: Sequence[Run]) -> list[Run]:
        """The runs that the figure shows."""
        return compared(self._of_rows(runs))

    def _of_rows(self, runs: Sequence[Run]) -> list[Run]:
        methods = (DENSE, *self.methods, *self.variants, *self.sweep)
        rows = [row_id(self.model, method) for method in methods]
        return [run for run in of_model(runs, self.model) if run.row in rows]

    def page(self, runs: Sequence[Run], scale: str) -> Page:
        """The page from the finished runs of one scale; UserError if they are not alike."""
        own, one = self.own(runs), course(runs, self.model, scale)
        found = numbers(replace(one, runs=tuple(own)))
        rows = self.rows
        regret, more = regret_block(one, rows)
        norm = norm_claims(self.model, self.claims)
        energy = [claim for claim in self.claims if f"{claim.id}.norm" in {c.id for c in norm}]
        return Page(
            title=self.title,
            scale=scale,
            header=header(self._of_rows(runs), scale),
            warning="",
            blocks=(
                gains_block(energy, norm, found),
                factor_block(own, found, rows),
                throughput_block(own, found, rows),
                branch_block(found, rows),
                volume_block(one, found, rows),
                *([decay_block(own, found, rows)] if found.get("dip") else []),
                *([sweep_block(one, found)] if self.sweep else []),
                *([variant_block(one, found)] if self.variants else []),
                regret,
            ),
            verdicts=judge((*self.claims, *norm), found, scale),
            notes=self.notes,
            choices=FACTOR_CHOICES,
            numbers=csv_lines(merged(found, more)),
        )

    def figure(self, runs: Sequence[Run], scale: str) -> Figure:
        """Left: quality by iteration. Middle: density of steps by factor. Right: throughput."""
        own = self.own(runs)
        with style.house_style():
            drawing = Figure(figsize=(12.4, 4.4), layout="constrained")
            left, middle, right = drawing.subplots(1, 3)
            metric = metric_of(own)
            labels = {DENSE: "dense", **{method: named(method) for method in self.methods}}
            looks = {row_id(self.model, m): (labels[m], LOOKS[m]) for m in labels}
            draw_quality(left, own, metric, looks)
            panel(left, f"{metric.label.capitalize()} by iteration")
            for method in self.methods:
                chosen = rows_of(own, row_id(self.model, method))
                _draw_density(middle, chosen, LOOKS[method])
                _draw_throughput(right, chosen, LOOKS[method])
            middle.set_ylabel(f"density of steps over log10 (bandwidth {BANDWIDTH:g})")
            panel(middle, "Iterations by compression factor")
            right.set_ylim(0, 1.05 * max(1.0, right.dataLim.y1) if right.lines else 1.0)
            right.set_ylabel(f"{samples_label(own)} times gain")
            panel(right, "Compression throughput by factor")
            for axes in (middle, right):
                _by_factor(axes, own)
            heading(drawing, self.title, own, scale)
            handles, texts = left.get_legend_handles_labels()
            if handles:
                drawing.legend(handles, texts, loc="outside lower center", ncols=3, handlelength=3)
        return drawing

    def regret(self, runs: Sequence[Run], scale: str) -> Figure:
        """The table of regret, drawn."""
        one = course(runs, self.model, scale)
        looks = {row_id(self.model, method): LOOKS[method] for method in self.methods}
        title = (
            f"GraVAC, figure {self.number}'s rows: regret against the best static row in hindsight"
        )
        return gravac_regret_figure.figure(one, self.rows, looks, title, scale)


def _draw_density(axes: Axes, runs: Sequence[Run], look: Look) -> None:
    for run in runs:
        factors = column(run, "factor")
        if factors.size:
            grid = np.linspace(-BESIDE, math.log10(factors.max()) + BESIDE, 500)
            drawn = density(grid, factors)
            axes.plot(10**grid, drawn, color=look.colour, linestyle=look.dashes, linewidth=1.2)


def _draw_throughput(axes: Axes, runs: Sequence[Run], look: Look) -> None:
    for run in runs:
        points = {factor: throughput(run, factor) for factor in shares(run)}
        known = {factor: rate for factor, rate in points.items() if math.isfinite(rate)}
        axes.plot(
            list(known), list(known.values()), color=look.colour, linestyle=look.dashes,
            marker=look.marker, markersize=5,
            markerfacecolor="white" if look.dashes != "-" else look.colour,
        )  # fmt: skip


def _by_factor(axes: Axes, runs: Sequence[Run]) -> None:
    """A log axis with a tick at each power of ten."""
    largest = max((1000.0, *(factor for run in runs for factor in shares(run))))
    axes.set_xscale("log")
    style.plain_log(axes.xaxis, (1.0,))
    axes.set_xlim(10**-BESIDE, largest * 10**BESIDE)
    axes.set_xlabel("compression factor (log)")


FIGURES = {
    **{
        f"fig{number}": Factors(
            number,
            model,
            (GRAVAC, GRAVAC_STRICT),
            FACTOR_CLAIMS[model],
            variants=tuple(VARIANTS) if model == gravac.RESNET101 else (),
            sweep=tuple(SWEEP),
        )
        for model, number in FIGURE.items()
    },
    f"fig{GEOMETRIC_FIGURE}": Factors(
        GEOMETRIC_FIGURE,
        gravac.RESNET101,
        (GRAVAC, GEOMETRIC),
        GEOMETRIC_CLAIMS,
        GEOMETRIC_NOTES,
    ),
}
"""Figures 7 to 10 by name."""
