"""Which plain quantizer ends below dense training? The study around the plateau of the paper's static 8-bit.

One factor at a time around plain 8-bit (bits, rounding, scale, error feedback), and at 4 bits all
combinations of the other three. The factors are read from the config of each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import OURS, Check, Claim, near
from dgc_repro.paper.dynamic import NONE, STATIC
from dgc_repro.paper.dynamic.table1 import QUANTITIES, REGIME, TABLE_1, TEST
from dgc_repro.paper.frame import Column, Values, pivot, seeds, signed
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import MIN_SEEDS, interval

DENSE, PLAIN_8 = "dense", "bits8_nearest_blockNone"
UNDER, SHARE = "points under dense", "payload of dense's"
UNDER_DENSE_POINTS = 2.0
"""A setting is called below dense when it ends more than this many points under it. Ours."""
CENTRE_BITS, GRID_BITS = 8, 4
ROUNDINGS = {"nearest": plot.BLACK, "toward_zero": plot.ORANGE, "stochastic": plot.BLUE}
GAP = TABLE_1(NONE, "test") - TABLE_1(STATIC, "test")
_in_regime = (Check(TEST, DENSE, above=REGIME[0]),)
_regime_text = f"Not tested where dense training ends under {REGIME[0]:g} %."

CLAIMS = (
    Claim(
        "static8", f"Static 8-bit ends {GAP:.2f} points under no compression.", "Table I",
        (near(Check(TEST, DENSE, PLAIN_8), GAP, GAP / 2),),
        "Test accuracy after the last epoch; 8 bits, nearest, one scale a tensor, within half of the printed "
        f"gap either way. {_regime_text}", _in_regime, OURS,
    ),
    Claim(
        "plain", f"A sound 8-bit quantizer ends within {UNDER_DENSE_POINTS:g} points of no compression.",
        "this project's expectation",
        (Check(TEST, DENSE, PLAIN_8, above=-UNDER_DENSE_POINTS, below=UNDER_DENSE_POINTS),),
        f"The same two rows, either side. {_regime_text}", _in_regime, OURS,
    ),
)  # fmt: skip


class Factors(NamedTuple):
    """A quantizer's settings, in order. ``bits`` 0: dense; ``block`` 0: one scale a tensor."""

    bits: int = 0
    rounding: str = "nearest"
    block: int = 0
    error_feedback: bool = False

    @property
    def label(self) -> str:
        """The setting in words."""
        scale = f"block {self.block}" if self.block else "tensor"
        words = f"{self.bits}-bit, {self.rounding.replace('_', ' ')}, {scale}"
        return f"{words}{', EF' if self.error_feedback else ''}" if self.bits else "dense"


def factors_of(config: Mapping[str, Any]) -> Factors:
    """The quantizer's settings from a resolved config; dense where the compressor has no bits."""
    settings = config.get("compressor") or {}
    if not settings.get("bits"):
        return Factors()
    fed = "error_feedback" in (config.get("wrap") or [])
    rounding = str(settings.get("rounding", "nearest"))
    return Factors(int(settings["bits"]), rounding, int(settings.get("block") or 0), fed)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError where there is none or they are not one
    experiment."""
    if not runs:
        raise UserError("experiment.artifact: at least one finished run of sensitivity, got none")
    require_alike(runs, facts.ALIKE)
    found = {run.row: factors_of(run.config) for run in runs}
    factors = dict(sorted(found.items(), key=lambda item: item[1]))
    labels = {row: setting.label for row, setting in factors.items()}
    frame = numbers(runs)
    columns = (
        seeds(TEST),
        Column("test accuracy %", TEST, 2),
        Column("points under dense", UNDER, lambda values: signed(values, 2)),
        Column("95 % interval", UNDER, _interval),
        Column("payload, % of dense", SHARE, 1),
    )
    return made(
        __file__,
        scale,
        runs,
        frame,
        [Section("Settings", pivot(frame, labels, columns, first="setting"))],
        CLAIMS,
        labels=labels,
        head=[("settings, runs", f"{len(factors)}, {len(runs)}")],
        said={"sentence": sentence(frame, factors)},
        figures={"sensitivity": partial(_figure, frame, factors, runs, scale)},
    )


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: accuracy and payload, and both against the dense run of the same seed."""
    found = frames.measure(runs, {name: QUANTITIES[name] for name in (TEST, "payload")})
    own = found[found["quantity"] == TEST]
    base = own["seed"].map(own[own["row"] == DENSE].set_index("seed")["value"])
    under = own.assign(value=base - own["value"], quantity=UNDER, unit="points")
    share = frames.relative(found, "payload", DENSE, name=SHARE, unit="%")
    return frames.join(found, under.dropna(subset="value"), share)


def _interval(values: Values) -> str:
    if len(values) < MIN_SEEDS:
        return "-"
    _, low, high = interval(values)
    return f"{low:+.2f} to {high:+.2f}"


def sentence(frame: pd.DataFrame, factors: Mapping[str, Factors]) -> str:
    """Which quantizers without error feedback end more than `UNDER_DENSE_POINTS` under dense on average."""
    plain = [row for row, setting in factors.items() if setting.bits and not setting.error_feedback]
    under = {row: float(np.mean(found)) for row in plain if (found := frames.of(frame, UNDER, row))}
    low = {row: mean for row, mean in under.items() if mean > UNDER_DENSE_POINTS}
    named = "; ".join(f"{factors[row].label} ({mean:.1f})" for row, mean in low.items())
    return (
        f"Of {len(under)} quantizers without error feedback and with a dense run of the same seed, "
        f"{len(low)} end on average more than {UNDER_DENSE_POINTS:g} points under dense"
        f"{': ' if named else ''}{named}. The paper's static 8-bit ends {GAP:.2f} points under its "
        "dense training."
    )


def _figure(
    frame: pd.DataFrame, factors: Mapping[str, Factors], runs: Sequence[Run], scale: str
) -> Figure:
    """A line of points for each setting: seeds, their mean, and the interval."""
    names = {
        "one factor at a time around 8 bits": [
            row
            for row, f in factors.items()
            if f.bits and (f.bits == CENTRE_BITS or f == Factors(f.bits))
        ],
        f"all combinations at {GRID_BITS} bits": [
            row for row, f in factors.items() if f.bits == GRID_BITS
        ],
    }
    panels = [
        (name, partial(_points, rows=rows, frame=frame, of_row=factors))
        for name, rows in names.items()
    ]
    said = (
        f"{facts.caption(runs, scale)}; large: mean, hollow with error feedback (EF); bars: 95 % interval "
        f"(from {MIN_SEEDS} seeds on); small: seeds; dotted: the paper's static 8-bit"
    )
    title = "Final test accuracy by quantizer"
    return plot.figure(title, said, panels, columns=2, size=(5.6, 4.4), legend=0)


def _points(
    axes: Axes, rows: Sequence[str], frame: pd.DataFrame, of_row: Mapping[str, Factors]
) -> None:
    shown = {row: values for row in rows if (values := frames.of(frame, UNDER, row))}
    if not shown:
        return plot.empty(axes, "no runs with a dense run of the same seed")
    for place, (row, values) in enumerate(shown.items()):
        colour = ROUNDINGS.get(of_row[row].rounding, plot.GREEN)
        mean, low, high = interval(values)
        axes.plot(values, [place] * len(values), ".", color=colour, alpha=0.5, markersize=4)
        reach = [[mean - low], [high - mean]] if len(values) >= MIN_SEEDS else None
        face = "white" if of_row[row].error_feedback else colour
        look: dict[str, Any] = {"fmt": "o", "color": colour, "markersize": 6, "capsize": 2}
        axes.errorbar(mean, place, xerr=reach, markerfacecolor=face, **look)
    for x, dashes in ((0, "-"), (GAP, ":")):
        axes.axvline(x, color="#888888", linewidth=1, linestyle=dashes)
    axes.set_yticks(range(len(shown)), [of_row[row].label for row in shown])
    axes.invert_yaxis()
    return plot.name_axes(axes, "test accuracy under dense (points, paired by seed)")
