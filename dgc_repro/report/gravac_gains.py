"""GraVAC's figures 4 to 6: norms before and after compression, quality and gain at fixed 10x and 1000x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac
from dgc_repro.paper.gravac_figures import (
    EARLY,
    FIGURE,
    GAINS_CHOICES,
    GAINS_CLAIMS,
    LATER,
    LOW_STEPS,
    OF_GAINS,
    OF_NORM_GAINS,
    STRONG,
    WEAK,
    part,
)
from dgc_repro.paper.gravac_training import DENSE, row_id
from dgc_repro.report import style
from dgc_repro.report.figures import Look
from dgc_repro.report.gravac_decisions import (
    at,
    cell,
    column,
    csv_lines,
    draw_quality,
    final,
    gains_block,
    header,
    heading,
    mean_of,
    norm_gain,
    panel,
    thinning,
)
from dgc_repro.report.gravac_pool import (
    Numbers,
    collect,
    judge,
    metric_of,
    of_model,
    quality,
    rows_of,
)
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, Page

FACTOR_LABELS = {WEAK: "10x", STRONG: "1000x"}
LOOKS = {
    DENSE: Look(style.BLACK, "o"),
    WEAK: Look(style.BLUE, "^"),
    STRONG: Look(style.ORANGE, "s"),
}
GAINS = {"gain": "energy", "gain_norm": "norm"}
"""The printed gain and that of the authors' code."""


def numbers(runs: Sequence[Run]) -> Numbers:
    """Mean gain and norms of each run, the gain of its first and later steps, final quality."""
    metric = metric_of(runs)
    found = collect(
        runs,
        {
            "gain": lambda run: mean_of(column(run, "gain")),
            "gain_norm": lambda run: mean_of(norm_gain(run)),
            "norm_before": lambda run: mean_of(column(run, "norm_before")),
            "norm_after": lambda run: mean_of(column(run, "norm_after")),
            final(metric): lambda run: float(quality(run, metric)[-1]),
        },
    )
    for run in runs:
        early = column(run, "step") <= at(run, LOW_STEPS)
        for name, gains in (("gain", column(run, "gain")), ("gain_norm", norm_gain(run))):
            for where, own in ((EARLY, early), (LATER, ~early)):
                if np.isfinite(gains[own]).any():
                    place = part(run.row, where)
                    found.setdefault(name, {}).setdefault(place, {})[run.seed] = mean_of(gains[own])
                    spread = found.setdefault(f"{name}_sd", {}).setdefault(place, {})
                    spread[run.seed] = float(np.nanstd(gains[own]))
    return found


@dataclass(frozen=True)
class Gains:
    """The page and the figure of one model."""

    model: str

    def page(self, runs: Sequence[Run], scale: str) -> Page:
        """The page from the finished runs of one scale; UserError if they are not alike."""
        own = self._own(runs)
        found = numbers(own)
        return Page(
            title=f"GraVAC, figure {FIGURE[self.model]}: {gravac.LABELS[self.model]}, gradients before and "
            "after compression",
            scale=scale,
            header=header(own, scale),
            warning="",
            blocks=(
                gains_block(OF_GAINS[self.model], OF_NORM_GAINS[self.model], found),
                self._gain_block(own, found),
                self._norm_block(found),
                self._quality_block(own, found),
            ),
            verdicts=judge(GAINS_CLAIMS[self.model], found, scale),
            notes=(),
            choices=GAINS_CHOICES,
            numbers=csv_lines(found),
        )

    def _own(self, runs: Sequence[Run]) -> list[Run]:
        rows = [row_id(self.model, method) for method in LOOKS]
        return [run for run in of_model(runs, self.model) if run.row in rows]

    def _gain_block(self, runs: Sequence[Run], found: Numbers) -> Block:
        rows = []
        for method, label in FACTOR_LABELS.items():
            name = row_id(self.model, method)
            for gain, reading in GAINS.items():
                rows.append(
                    (
                        f"{label}, {reading}",
                        str(len(rows_of(runs, name))),
                        cell(found, gain, name),
                        cell(found, gain, part(name, EARLY)),
                        cell(found, gain, part(name, LATER)),
                        cell(found, f"{gain}_sd", part(name, LATER), 2),
                    )
                )
        return Block(
            "Gain",
            f"Means over {thinning(runs)}, not smoothed. Energy: squared norm of what is sent over that of "
            "the error-fed gradient (as printed). Norm: sum over tensors of the norms of what is sent over "
            "that of the gradient without its residual (the authors' code; may be above 1). First: "
            f"the share of the run that {LOW_STEPS:,} steps are of the paper's; sd: over the later steps.",
            ("factor", "n", "gain", "gain: first", "gain: later", "sd: later"),
            tuple(rows),
        )

    def _norm_block(self, found: Numbers) -> Block:
        names = {label: row_id(self.model, method) for method, label in FACTOR_LABELS.items()}
        return Block(
            "Norm of the gradient before and after compression",
            "Means over the same steps. BC: before, of the error-fed gradient; AC: after, of what is sent.",
            ("factor", "BC", "AC"),
            tuple(
                (label, *(cell(found, f"norm_{what}", name) for what in ("before", "after")))
                for label, name in names.items()
            ),
        )

    def _quality_block(self, runs: Sequence[Run], found: Numbers) -> Block:
        metric, dense = metric_of(runs), row_id(self.model, DENSE)
        values = found.get(final(metric), {})
        rows = []
        for method, label in {DENSE: "dense", **FACTOR_LABELS}.items():
            name = row_id(self.model, method)
            own, whole = values.get(name, {}), values.get(dense, {})
            apart = {seed: own[seed] - whole[seed] for seed in own if seed in whole}
            against = {"apart": {name: apart}} if method != DENSE else {}
            rows.append(
                (
                    label,
                    str(len(own)),
                    cell(found, final(metric), name, 4),
                    cell(against, "apart", name),
                )
            )
        return Block(
            f"Final {metric.label}",
            "After the last epoch; the difference is paired by seed.",
            ("factor", "n", f"{metric.label} {metric.unit}".rstrip(), "less dense"),
            tuple(rows),
        )

    def figure(self, runs: Sequence[Run], scale: str) -> Figure:
        """Above: norms at 10x and at 1000x. Below: quality and gain."""
        with style.house_style():
            drawing = Figure(figsize=(9.8, 6.8), layout="constrained")
            panels = drawing.subplots(2, 2)
            own = self._own(runs)
            for axes, method in zip(panels[0], (WEAK, STRONG), strict=True):
                self._draw_norms(axes, own, method)
            metric = metric_of(own)
            draw_quality(
                panels[1, 0],
                own,
                metric,
                {row_id(self.model, m): (FACTOR_LABELS.get(m, m), LOOKS[m]) for m in LOOKS},
            )
            panel(panels[1, 0], f"{metric.label.capitalize()} by iteration")
            self._draw_gains(panels[1, 1], own)
            panels[1, 1].set_ylim(bottom=0)
            panels[1, 1].set_ylabel("gain")
            panels[1, 1].set_xlabel("iteration")
            panel(panels[1, 1], "Gain by iteration: energy (thick), norm (thin)")
            title = f"{gravac.LABELS[self.model]} at fixed compression factors"
            heading(drawing, title, own, scale)
            handles, labels = panels[1, 0].get_legend_handles_labels()
            if handles:
                drawing.legend(handles, labels, loc="outside lower center", ncols=3)
        return drawing

    def _draw_gains(self, axes: Axes, runs: Sequence[Run]) -> None:
        for method in (WEAK, STRONG):
            colour = LOOKS[method].colour
            for run in rows_of(runs, row_id(self.model, method)):
                steps = column(run, "step")
                axes.plot(steps, column(run, "gain"), color=colour, linewidth=1.4)
                axes.plot(steps, norm_gain(run), color=colour, linewidth=0.5, alpha=0.7)

    def _draw_norms(self, axes: Axes, runs: Sequence[Run], method: str) -> None:
        for number, run in enumerate(rows_of(runs, row_id(self.model, method))):
            for name, label, colour in (
                ("norm_before", "before (BC)", style.BLACK),
                ("norm_after", "after (AC)", LOOKS[method].colour),
            ):
                axes.plot(
                    column(run, "step"), column(run, name), color=colour, linewidth=0.9, alpha=0.9,
                    label=label if number == 0 else None,
                )  # fmt: skip
        axes.set_yscale("log")
        style.plain_log(axes.yaxis)
        axes.set_xlabel("iteration")
        axes.set_ylabel("norm of the gradient (log)")
        panel(axes, f"Norm before and after compression, {FACTOR_LABELS[method]}")
        if axes.lines:
            axes.legend(loc="best")


FIGURES = {f"fig{number}": Gains(model) for model, number in FIGURE.items()}
"""Figures 4 to 6 by name."""
