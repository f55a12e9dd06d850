"""GraVAC's Table II: final quality, difference to the target, speedup to the plateau; and what is sent.

How target, plateau, speedups and "failed" are read: report/gravac_course.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_quality as paper
from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report.gravac_course import (
    OURS,
    Course,
    clocks_text,
    course,
    differences,
    failed_text,
    numbers,
    shown_clocks,
    speedups_to_plateau,
)
from dgc_repro.report.gravac_pool import (
    UNITS,
    Numbers,
    csv_line,
    judge,
    merged,
    pool_header,
    quality,
    reductions,
    written,
)
from dgc_repro.report.gravac_quality_figure import draw
from dgc_repro.report.gravac_setup import setup_block, twins_block
from dgc_repro.report.gravac_volume import held_block, of_row, volume_block
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, Page

PRINTED = tuple(row.id for row in paper.TABLE_2.rows)
ALWAYS = (printed.DENSE, *PRINTED, printed.GRAVAC_STRICT, *printed.NORM_ROWS)
"""Rows of a model, in order, whether they were run or not."""
PARTS = ("quality", "difference", "speedup")
HEADINGS = ("method", "n", "final: paper", "ours", "diff: paper", "ours", "speedup: paper")


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if those of a model are not alike."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    found = merged(*(numbers(one) for one in courses))
    held = judge(paper.DENSE_CLAIMS, found, scale)
    clocks = shown_clocks(courses)
    return Page(
        title="GraVAC, Table II: final quality and speedup over Top-k 10x",
        scale=scale,
        header=pool_header([run for one in courses for run in one.runs], scale),
        warning="",
        blocks=(
            *(_quality_block(one, found, clocks, is_first=one is courses[0]) for one in courses),
            volume_block(courses, shown, found),
            held_block(courses, found, held),
            twins_block(courses),
            setup_block(courses),
        ),
        verdicts=(*judge(paper.CLAIMS, found, scale), *held),
        notes=paper.NOTES,
        choices=printed.SILENT_CHOICES,
        numbers=tuple(
            line
            for one in courses
            for method in shown(one)
            for line in _lines(one, method, found, clocks)
        ),
    )


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """A panel a model: difference to the target by modelled speedup; hollow: the paper's."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    return draw(courses, merged(*(numbers(one) for one in courses)), scale)


def shown(one: Course) -> list[str]:
    """The printed rows, dense and eps 0.9, and others of GraVAC's that were run."""
    others = [m for m in printed.METHOD_LABELS if m.startswith("gravac") and m not in ALWAYS]
    return [*ALWAYS, *(method for method in others if one.of(method))]


def _failures(one: Course, method: str, found: Numbers) -> int:
    """How many of a row's runs have failed."""
    return int(sum(of_row(found, printed.FAILED, one.model, method).values()))


def _decimals(values: Sequence[float]) -> int:
    """Two of a percentage, fewer of a perplexity of hundreds."""
    largest = max((abs(value) for value in values), default=0.0)
    return 2 if largest <= 100 else 1 if largest < 1000 else 0


def _ours(one: Course, method: str, found: Numbers) -> str:
    """The final quality; failed where every run has."""
    values = [float(quality(run, one.metric)[-1]) for run in one.of(method)]
    if not values:
        return "not run"
    if _failures(one, method, found) == len(values):
        return f"failed ({np.mean(values):.4g})"
    return written(values, decimals=_decimals(values))


def _count(one: Course, method: str, found: Numbers) -> str:
    """Runs; of those how many have trained, where some have and some have not."""
    count, failures = len(one.of(method)), _failures(one, method, found)
    return f"{count - failures}/{count}" if 0 < failures < count else str(count)


def _paper_cells(model: str, method: str) -> tuple[str, str, str]:
    """What Table II prints of a row, '-' where it has none."""
    if method not in PRINTED:
        return "-", "-", "-"
    if paper.is_printed_failed(model, method):
        return "failed", "-", "-"
    final, difference, speedup = (paper.printed(model, method, part) for part in PARTS)
    return f"{final:g}", f"{difference:+g}", f"{speedup:g}x"


def _signed(values: Sequence[float]) -> str:
    """With its sign; '-' for none."""
    text = written(values, decimals=_decimals(values))
    return text if text.startswith("-") else f"+{text}"


def _quality_block(one: Course, found: Numbers, clocks: Sequence[str], *, is_first: bool) -> Block:
    """Rows of one model; what holds of all blocks is said in the first."""
    rows = []
    for method in shown(one):
        final, difference, speedup = _paper_cells(one.model, method)
        failed = _failures(one, method, found) == len(one.of(method))
        ours, *others = (
            ["-" if failed else _signed(differences(one, method, t)) for t in one.targets]
            if one.target is not None
            else ["-"]
        )
        rows.append(
            (
                *(printed.METHOD_LABELS[method], _count(one, method, found)),
                *(final, _ours(one, method, found), difference, ours, speedup),
                *(
                    written(speedups_to_plateau(found, one.model, method, paper.BASELINE, c), "x")
                    for c in clocks
                ),
                *others,
            )
        )
    others = [f"diff to {t.whose}, {t.value:g}" for t in one.targets if t.whose != OURS]
    unit = f", {one.metric.unit}" if one.metric.unit else ""
    return Block(
        f"{LABELS[one.model]}: {one.metric.label}{unit}",
        _text(one, clocks if is_first else ()),
        (*HEADINGS, *clocks, *(others if one.target is not None else ())),
        tuple(rows),
        narrow=(0, 1, 2, 3, 5, 6, 7),
    )


def _text(one: Course, clocks: Sequence[str]) -> str:
    """What the target is, and what the numbers are; of the clocks, where there are any, what they are."""
    said = "No dense run: no target, and no difference to it."
    if one.target is not None and one.target.dense is not None:
        dense = one.target.dense
        spread = "one seed, no spread" if dense.sd is None else f"+- {dense.sd:.2f}, n = {dense.n}"
        sign = "less" if one.metric.sign > 0 else "plus"
        said = (
            f"Target: {one.target.value:.2f}, dense's {dense.mean:.2f} ({spread}) {sign} one "
            "deviation."
        )
    legend = (
        " In this table and the next ones: mean +- standard deviation over n seeds (2/3: of three runs two "
        "have trained, one failed); differences are positive where the target is met; speedup to the "
        f"plateau over Top-k 10x, paired by seed: {clocks_text(clocks)}"
        if clocks
        else ""
    )
    return (
        f"{said} The paper's are of {printed.METRICS[one.model]}, target "
        f"{printed.SETUP.printed(one.model, 'target'):g}. {failed_text(one)}{legend}"
    )


def _lines(one: Course, method: str, found: Numbers, clocks: Sequence[str]) -> list[dict[str, Any]]:
    """One line a number of a row, for table.csv."""
    cells: list[float | None] = [None, None, None]
    if method in PRINTED:
        cells = [paper.printed(one.model, method, part) for part in PARTS]
    finals = [float(quality(run, one.metric)[-1]) for run in one.of(method)]
    lines = [("final", one.metric.label, finals, cells[0])]
    if one.target is not None:
        ours = differences(one, method, one.target)
        lines.append(("difference", one.metric.unit, ours, cells[1]))
    for clock in clocks:
        pairs = speedups_to_plateau(found, one.model, method, paper.BASELINE, clock)
        lines.append((f"speedup_to_plateau, {clock}", "x", pairs, cells[2]))
    for name, unit in ((printed.FAILED, "runs"), (printed.TEST_LOSS, "nats")):
        lines.append((name, unit, list(of_row(found, name, one.model, method).values()), None))
    less = reductions(found, printed.row_id(one.model, printed.DENSE))
    for name in UNITS:
        pairs = list(of_row(less, f"{name}_reduction", one.model, method).values())
        known = printed.REDUCTIONS[one.model].get(method) if name == "floats" else None
        lines.append((f"{name}_reduction", "x", pairs, known))
    return [csv_line(one.model, method, *line) for line in lines]
