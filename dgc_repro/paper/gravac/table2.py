"""GraVAC's Table II: final quality, speedup to the plateau over Top-k 10x, and what is sent.

Qualities are compared with dense, paired by seed; runs.py defines plateau and failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, frame, gravac, plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim, Note, Printed
from dgc_repro.paper.frame import Column, pivot, values
from dgc_repro.paper.gravac import DENSE, GRAVAC, GRAVAC_ROWS, LOOKS, LSTM, MODELS, SETUP, row_id
from dgc_repro.paper.gravac import runs as training
from dgc_repro.paper.gravac.runs import ASSUMED, FEWER, FLOATS, MODELLED, Course
from dgc_repro.paper.gravac.steps import of_norm
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import interval
from dgc_repro.paper.verdict import paired

POOL = "training"
BASELINE = "topk10"
"""Speedups are over this row."""
BETTER, BETTER_PAPERS = "better than dense", "better than the paper's target"
SPEEDUP = "speedup to the plateau"
NAN = math.nan
TABLE_2 = Printed(
    "Table II",
    {f"{model}.{part}": "" for model in MODELS for part in ("quality", "difference", "speedup")},
    {
        "topk10": (80.14, 0.14, 1, 91.2, 1.2, 1, 22.0, 0.0, 1),
        "topk1000": (76.4, -3.6, 3.02, 90.68, 0.68, 3.22, 26.78, -4.78, 3.36),
        "dgc10": (80.4, 0.4, 1.23, 90.8, 0.8, 0.935, 21.67, 0.33, 1.23),
        "dgc1000": (78.6, -1.4, 5.19, 90.4, 0.4, 3.35, 25.14, -3.14, 6.25),
        "redsync10": (79.4, -0.6, 1.2, 90.45, 0.45, 0.99, 21.65, 0.35, 1.17),
        "redsync1000": (77.4, -2.6, 6.94, 90.3, 0.3, 3.6, 24.24, -2.24, 6.9),
        "randomk10": (NAN, NAN, NAN, 87.8, -2.2, 0.7, 24.15, -2.15, 1.3),
        "randomk1000": (NAN,) * 9,
        GRAVAC: (80.2, 0.2, 4.32, 90.48, 0.48, 1.95, 21.25, 0.75, 6.67),
    },
)
"""NaN: "failed". A difference is positive where the target is met, of perplexity too."""
METHODS = (DENSE, *(m for m in TABLE_2.rows if m != GRAVAC), *GRAVAC_ROWS)


def printed(model: str, method: str, part: str) -> float:
    """A number of Table II: ``part`` is quality, difference or speedup; NaN where it says failed."""
    return TABLE_2(method, f"{model}.{part}")


def printed_better(model: str, method: str) -> float:
    """By how many per cent of the target a printed quality is better than it."""
    sign = -1 if model == LSTM else 1
    return sign * 100 * (printed(model, method, "quality") / SETUP(model, "target") - 1)


def _unit(model: str) -> str:
    return "" if model == LSTM else " %"


_DENSE = (
    "Test metric after the last epoch, paired by seed: points of accuracy, ratio of perplexities."
)
_AS_GOOD = (
    f"{_DENSE} Dense of the same seed stands for the target: at most half a point, or 2 %, worse."
)
_MAGNITUDE = (
    "The same difference, within half of the printed one either way, or half a point, or 2 %."
)
_SPEED = (
    "Modelled seconds to the plateau, paired by seed; a failed row never reaches one. Not tested where the "
    "faster row ends farther below dense than any row with a printed speedup misses its target."
)
_SPEEDUP = "The same ratio, within half of the printed gain either way."


def largest_miss(model: str) -> float:
    """By how much the worst row with a printed speedup misses its target: points, or a ratio of perplexities.
    No speedup counts of a row that ends farther below dense: to stop badly is no gain in time."""
    kept = [m for m in TABLE_2.rows if not math.isnan(printed(model, m, "speedup"))]
    worst = min(printed(model, m, "difference") for m in kept)
    return 1 - worst / SETUP(model, "target") if model == LSTM else -worst


def near_dense(model: str, method: str) -> Check:
    """The premise of a claim that a row is faster: it ends at most the `largest_miss` worse than dense."""
    check, miss = training.better(model, method, DENSE), largest_miss(model)
    return replace(check, above=1 / miss if check.ratio else -miss)


def _miss_text(model: str) -> str:
    miss = largest_miss(model)
    return f"{100 * (miss - 1):.3g} %" if model == LSTM else f"{miss:.3g} points"


def _faster(
    name: str, text: str, model: str, slow: str, quick: str, premises: tuple[Check, ...] = ()
) -> tuple[Claim, ...]:
    """``quick`` has its plateau earlier than ``slow``, and by how much."""
    premises = (*premises, near_dense(model, quick))
    ratio = printed(model, quick, "speedup") / printed(model, slow, "speedup")
    check = Check(
        training.PLATEAU_SECONDS, row_id(model, slow), row_id(model, quick), above=1.0, setting=MODELLED,
        ratio=True, printed=ratio,
    )  # fmt: skip
    return (
        Claim(f"{model}.{name}.faster", f"{text}.", "Table II", (check,), _SPEED, premises,
              assumed=ASSUMED),
        Claim(f"{model}.{name}.speedup", f"{text}: by {ratio:.3g}x.", "Table II",
              (training.sooner_by(check, ratio),), _SPEEDUP, premises, OURS, assumed=ASSUMED),
    )  # fmt: skip


def _gravac_claims(model: str) -> tuple[Claim, ...]:
    name, premises = MODELS[model], training.compressed(model, GRAVAC)
    quality, target = printed(model, GRAVAC, "quality"), SETUP(model, "target")
    fastest = "redsync1000"
    order = Check(
        training.PLATEAU_SECONDS, row_id(model, GRAVAC), row_id(model, fastest), above=1.0, ratio=True,
        setting=MODELLED,
    )  # fmt: skip
    return (
        Claim(
            f"{model}.gravac.target",
            f"{name}: GraVAC meets the target ({quality:g} for {target:g}{_unit(model)}).",
            "Table II", (training.as_good(model, GRAVAC),), _AS_GOOD, premises, OURS,
        ),
        Claim(
            f"{model}.gravac.difference",
            f"{name}: GraVAC lies {printed(model, GRAVAC, 'difference'):+g} from the target.",
            "Table II", (training.better_by(model, GRAVAC, DENSE, (quality, target)),), _MAGNITUDE, premises,
            OURS,
        ),
        *_faster("gravac", f"{name}: GraVAC is faster than Top-k 10x", model, BASELINE, GRAVAC, premises),
        Claim(
            f"{model}.gravac.order",
            f"{name}: {LOOKS[fastest].label} is faster than GraVAC "
            f"({printed(model, fastest, 'speedup'):g}x against {printed(model, GRAVAC, 'speedup'):g}x).",
            "Table II", (order,), _SPEED, (*premises, near_dense(model, fastest)), assumed=ASSUMED,
        ),
    )  # fmt: skip


def _static_claims(model: str, compressor: str) -> tuple[Claim, ...]:
    """What 1000x costs in quality and gains in time against 10x."""
    weak, strong = f"{compressor}10", f"{compressor}1000"
    values = printed(model, weak, "quality"), printed(model, strong, "quality")
    name = f"{MODELS[model]}, {gravac.COMPRESSORS[compressor]}: 1000x"
    return (
        Claim(
            f"{model}.{compressor}.loses",
            f"{name} ends worse than 10x ({values[1]:g} and {values[0]:g}{_unit(model)}).",
            "Table II", (training.better(model, weak, strong),), _DENSE,
        ),
        Claim(
            f"{model}.{compressor}.loss", f"{name} ends {abs(values[0] - values[1]):.3g} worse.",
            "Table II", (training.better_by(model, weak, strong, values),), _MAGNITUDE, margin=OURS,
        ),
        *_faster(compressor, f"{name} is faster than 10x", model, weak, strong),
    )  # fmt: skip


def _random_claim(model: str, method: str) -> Claim:
    """Random-k fails, or trains and misses the target."""
    name, value = f"{MODELS[model]}, {LOOKS[method].label}", printed(model, method, "quality")
    trains = Check(training.ABOVE_FAILING, row_id(model, method))
    if math.isnan(value):
        text = "How far the final quality lies above the level at which a run has failed: below 0."
        fails = replace(trains, above=-math.inf, below=0.0)
        return Claim(f"{model}.{method}.fails", f"{name}: fails.", "Table II", (fails,), text)
    return Claim(
        f"{model}.{method}.misses",
        f"{name}: trains and misses the target ({value:g} for {SETUP(model, 'target'):g}{_unit(model)}).",
        "Table II", (trains, training.better(model, DENSE, method)),
        "Its final quality lies above the level at which a run has failed, and is worse than that of dense "
        "of the same seed.",
    )  # fmt: skip


def _target_claims(one: Course) -> tuple[Claim, ...]:
    """GraVAC reaches the paper's own target, where dense training does."""
    target = one.papers_target
    if math.isnan(target):
        return ()

    def reaches(method: str) -> Check:
        row = row_id(one.model, method)
        if one.metric.sign < 0:
            return Check(one.final, row, above=-math.inf, below=target)
        return Check(one.final, row, above=target)

    text = f"{MODELS[one.model]}: GraVAC reaches {gravac.TARGETS[one.model]}."
    reading = "Test metric after the last epoch. Not tested where dense training misses the target."
    claim = Claim(
        f"{one.model}.gravac.reaches", text, "Table II", (reaches(GRAVAC),), reading,
        (reaches(DENSE), *training.compressed(one.model, GRAVAC)),
    )  # fmt: skip
    return claim, of_norm(claim)


LOSS_SHARE = 0.05
"""Ours: the test loss (of the LSTM: the perplexity) is dense's when it lies at most this share above. Of a
loss in nats a word the same share would be a quarter of the perplexity."""


def _against_dense(model: str, method: str) -> tuple[Claim, ...]:
    name = f"{MODELS[model]}, {GRAVAC_ROWS[method]}: "
    quantity = training.PERPLEXITY if model == LSTM else training.TEST_LOSS
    rows = row_id(model, method), row_id(model, DENSE)
    reduction = gravac.REDUCTIONS[model][method]
    return (
        Claim(
            f"{model}.{method}.loss", f"{name}GraVAC's final {quantity.removeprefix('final ')} is dense's.",
            EXPECTED, (Check(quantity, *rows, below=1 + LOSS_SHARE, ratio=True),),
            f"After the last epoch, at most {100 * LOSS_SHARE:.0f} % above dense's.",
            training.compressed(model, method), OURS,
        ),
        Claim(
            f"{model}.{method}.volume", f"{name}{reduction:g} times fewer floats than dense.",
            "figures 7 to 9, communication volume", (training.fewer_floats(model, method, reduction),),
            f"Floats of the whole run, within a factor of {training.VOLUME_FACTOR:g}. At a reduced scale "
            "windows are shorter and fewer, so that each factor has another share of the steps.", margin=OURS,
        ),
    )  # fmt: skip


CLAIMS = tuple(
    claim
    for model in MODELS
    for claim in (
        *_gravac_claims(model),
        *map(of_norm, _gravac_claims(model)),
        *(c for compressor in ("topk", "dgc", "redsync") for c in _static_claims(model, compressor)),
        *(_random_claim(model, f"randomk{factor}") for factor in (10, 1000)),
        *(claim for method in GRAVAC_ROWS for claim in _against_dense(model, method)),
    )
)  # fmt: skip


def _missed() -> str:
    missed = [
        f"{MODELS[model]} {LOOKS[method].label}"
        for method in TABLE_2.rows
        for model in MODELS
        if printed(model, method, "difference") < 0
    ]
    return f"{len(missed)} rows miss it: {', '.join(missed)}."


def _beside(method: str) -> str:
    speeds = [
        f"{MODELS[m]} {printed(m, GRAVAC, 'speedup'):g}x, {printed(m, method, 'speedup'):g}x"
        for m in MODELS
    ]
    return f"GraVAC, {LOOKS[method].label}: {'; '.join(speeds)}."


NOTES = (
    Note("Speedups are printed for rows that never meet the target: they are to each row's own plateau.",
         _missed()),
    Note("GraVAC starts at 10x and uses at most DGC 1000x, so its speedup lies between theirs; on the LSTM "
         "it is printed above.", _beside("dgc1000")),
    Note("The text calls 6.67x the maximum speedup; Redsync 1000x has more on every model.",
         _beside("redsync1000")),
    Note("The text calls Top-k 10x better than dense on the LSTM; the table prints no difference.",
         f"Perplexity {printed(LSTM, 'topk10', 'quality'):.1f} for a target of "
         f"{SETUP(LSTM, 'target'):.1f}, difference {printed(LSTM, 'topk10', 'difference'):g}."),
    gravac.PERPLEXITY_NOTE,
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = training.courses(runs, scale, methods=METHODS)
    table = frame.join(*map(_measure, found))
    claims = [claim for one in found for claim in CLAIMS if claim.id.startswith(f"{one.model}.")]
    claims += [claim for one in found for claim in _target_claims(one)]
    return made(
        __file__,
        scale,
        training.runs_of(found),
        table,
        _sections(found, table),
        claims,
        labels=gravac.labels(training.runs_of(found)),
        data=gravac.DATA,
        head=[fact for one in found for fact in training.head(one)],
        said={"clocks": training.clocks_text(training.shown_clocks(table))},
        printed=_printed_numbers(),
        notes=NOTES,
        choices=gravac.CHOICES,
        figures={"table2": lambda: _figure(found, table, scale)},
    )


def _measure(one: Course) -> pd.DataFrame:
    """With quality over dense's and over the paper's target, per cent, and speedups."""
    found, final, sign = training.measure(one), one.final, one.metric.sign
    own = found[found["quantity"] == final]
    better = frame.join(
        frame.relative(found, final, row_id(one.model, DENSE), name=BETTER, unit="%"),
        own.assign(
            value=100 * own["value"] / one.papers_target, quantity=BETTER_PAPERS, unit="%"
        ).dropna(subset="value"),
    )
    base, seconds = row_id(one.model, BASELINE), training.PLATEAU_SECONDS
    quick = frame.relative(found, seconds, base, inverse=True, name=SPEEDUP)
    quick = quick[np.isfinite(quick["value"]) & (quick["value"] > 0)]
    return frame.join(found, better.assign(value=sign * (better["value"] - 100)), quick)


def _printed_numbers() -> frame.Known:
    found = {}
    for model in MODELS:
        final = training.PERPLEXITY if model == LSTM else training.QUALITY
        for method in TABLE_2.rows:
            row = row_id(model, method)
            found[row, final] = printed(model, method, "quality")
            found[row, BETTER] = printed_better(model, method)
            found[row, SPEEDUP] = printed(model, method, "speedup")
        for method, reduction in gravac.REDUCTIONS[model].items():
            found[row_id(model, method), FEWER[FLOATS]] = reduction
    return found


def _sections(found: Sequence[Course], table: pd.DataFrame) -> list[Section]:
    clocks, known = training.shown_clocks(table), _printed_numbers()
    rounded = {place: round(value, 1) for place, value in known.items()}
    one_decimal = partial(frame.signed, decimals=1)
    sections = [Section("How to read the tables")]
    for one in found:
        final, unit = one.final, one.metric.unit
        columns = [
            Column("failed", training.FAILED, frame.hits),
            Column(f"final {unit}".rstrip(), final, 2 if unit else 1, printed=known),
            Column("better by %", BETTER, one_decimal, printed=rounded),
        ]
        if not math.isnan(one.papers_target):
            columns.append(Column("better than the paper's target by %", BETTER_PAPERS, 1))
        for clock in clocks:
            beside = known if clock == MODELLED else None
            columns.append(Column(f"speedup, {clock}", SPEEDUP, frame.times, clock, beside))
        rows = {row_id(one.model, method): LOOKS[method].label for method in METHODS}
        text = (
            f"{training.target_text(one)} {training.failed_text(one)} A speedup in brackets does not count: "
            f"the row ends more than {_miss_text(one.model)} worse than dense, in the mean."
        )
        title = f"{one.family}: {one.metric.label} (printed: {MODELS[one.model]})"
        sections.append(Section(title, _bracketed(pivot(table, rows, columns), table, one), text))
    fewer = Column("floats", FEWER[FLOATS], frame.times, "", known, "x")
    compared = (
        Column("final test loss", training.TEST_LOSS),
        fewer,
        *(Column(unit, FEWER[unit], frame.times) for unit in ("payload", "wire")),
        Column("wire, N = 32", training.WIRE_MANY, frame.times),
    )
    labels = gravac.labels(training.runs_of(found))
    names = [row_id(one.model, method) for one in found for method in METHODS]
    volume = pivot(table, {row: labels[row] for row in names}, compared, "row")
    sent = Section("What is sent: times less than dense", volume)
    return [*sections, sent, training.setup_section(found)]


def _bracketed(shown: pd.DataFrame, table: pd.DataFrame, one: Course) -> pd.DataFrame:
    """With brackets around our speedups of rows that end too far below dense."""
    ends_low = []
    for method in METHODS:
        check = near_dense(one.model, method)
        mean = interval(paired(check, table), ratio=check.ratio)[0]
        ends_low.append(mean <= check.above)
    for column in shown.columns[shown.columns.str.match(r"speedup.*(?<!: printed)$")]:
        cells = zip(shown[column], ends_low, strict=True)
        shown[column] = [f"({cell})" if low and cell != "-" else cell for cell, low in cells]
    return shown


Cells = dict[str, tuple[list[float], list[float]]]


def _figure(found: Sequence[Course], table: pd.DataFrame, scale: str) -> Figure:
    """Above: printed, against the target. Below: ours, against dense. The metrics differ: no common axis."""

    def papers(model: str) -> Cells:
        parts = {m: (printed(model, m, "speedup"), printed_better(model, m)) for m in TABLE_2.rows}
        return {row_id(model, m): ([x], [y]) for m, (x, y) in parts.items() if not math.isnan(x)}

    def ours(model: str) -> Cells:
        cells = {}
        for row in (row_id(model, method) for method in METHODS):
            quick, good = values(table, SPEEDUP, row, MODELLED), values(table, BETTER, row)
            both = pd.concat([quick, good], axis=1, join="inner")
            if len(both):
                cells[row] = (list(both.iloc[:, 0]), list(both.iloc[:, 1]))
        return cells

    def draw(axes: Axes, model: str, cells: Cells, base: str) -> None:
        plot.points(axes, cells, gravac.looks(model, METHODS))
        if not cells:
            plot.empty(axes, "no run, or all have failed")
        axes.axhline(0.0, color=plot.BLACK, linewidth=0.8)
        plot.name_axes(
            axes, "speedup to the plateau over Top-k 10x", f"better than {base} by (%)", "x"
        )
        plot.plain_log(axes.xaxis, unit="x")

    panels: plot.Panels = []
    for one in found:
        cells = papers(one.model)
        printed_cells = partial(draw, model=one.model, cells=cells, base="the target")
        panels.append((f"paper: {MODELS[one.model]}", printed_cells))
    for one in found:
        title = f"ours: {one.family}, {one.metric.label}"
        panels.append((title, partial(draw, model=one.model, cells=ours(one.model), base="dense")))
    caption = facts.caption(training.runs_of(found), scale)
    title = "Table II: rows that have not failed (our speedup is modelled; bars: one standard deviation)"
    return plot.figure(title, caption, panels, legend=5)
