"""Which plain quantizer ends below dense training? The study around the plateau of the paper's static 8-bit.

One factor at a time around plain 8-bit (bits, rounding, scale, error feedback), and at 4 bits all
combinations of the other three. Scale medium has the readings of "8-bit" that the paper leaves open, beside
the runs of Table I. The factors are read from the config of each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.dynamic import NONE, PAPER, STATIC
from dgc_repro.paper.dynamic.table1 import QUANTITIES, REGIME, TABLE_1, TEST, room_for
from dgc_repro.paper.dynamic.table1 import UNDER_DENSE_POINTS as LEAST
from dgc_repro.paper.frame import Column, Values, pivot, seeds, signed
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.statistics import interval
from dgc_repro.paper.verdict import MIN_SEEDS

WORDS = Template.read(__file__)
ALSO = ("table1",)
"""Artifacts whose runs this one uses too (paper/publish.py)."""
DENSE, PLAIN_8 = "dense", "bits8_nearest_blockNone"
UNDER, SHARE = "points under dense", "payload of dense's"
CENTRE_BITS, GRID_BITS = 8, 4
MODEL, RUNNING = "one scale per model", "a scale that never falls"
AGAIN, WEIGHTS = "mean quantized again", "weights, not gradients"
AS_TABLE_1 = {NONE: DENSE, STATIC: PLAIN_8}
"""Rows of Table I that are settings of this study too, where a scale has both."""
ALIKE = (
    *(key for key in facts.ALIKE if key != "optimizer"),
    *(f"optimizer.{key}" for key in ("lr", "momentum", "weight_decay", "reference_batch")),
)
"""The optimizer itself differs in whether it rounds the weights."""
ROUNDINGS = {"nearest": plot.BLACK, "toward_zero": plot.ORANGE, "stochastic": plot.BLUE}
GAP = TABLE_1(NONE, "test") - TABLE_1(STATIC, "test")
_under = Check(TEST, DENSE, PLAIN_8)
_sound = replace(_under, above=-LEAST, below=LEAST)
_has_room, _room_text = room_for(GAP / 2, DENSE)
SAID = {"gap": GAP, "room": _room_text, "low": REGIME[0], "high": REGIME[1], "under": LEAST}
CLAIMS = (
    WORDS.claim("static8", near(_under, GAP, GAP / 2), premises=_has_room, ours=True, **SAID),
    WORDS.claim(
        "plain", _sound, premises=(Check(TEST, DENSE, above=REGIME[0]),), ours=True, **SAID
    ),
)


class Factors(NamedTuple):
    """A quantizer's settings, in order. ``bits`` 0: dense; ``block`` 0: one scale a tensor; ``reading``: what
    else it departs in from the plain reading."""

    bits: int = 0
    rounding: str = "nearest"
    block: int = 0
    error_feedback: bool = False
    reading: str = ""

    @property
    def label(self) -> str:
        """The setting in words."""
        if not self.bits:
            return "dense"
        if self.reading == WEIGHTS:
            return f"{self.bits}-bit weights, not gradients"
        scale = f"block {self.block}" if self.block else "tensor"
        other = self.reading if self.reading == AGAIN else ""
        words = [f"{self.bits}-bit", self.rounding.replace("_", " ")]
        words += [self.reading if self.reading and not other else scale, other]
        return ", ".join([*filter(None, words), *(["EF"] if self.error_feedback else [])])


def factors_of(config: Mapping[str, Any]) -> Factors:
    """The quantizer's settings from a resolved config; dense where nothing has bits."""
    settings, exchange = config.get("compressor") or {}, config.get("exchange") or {}
    if bits := (config.get("optimizer") or {}).get("weight_bits"):
        return Factors(int(bits), reading=WEIGHTS)
    if not settings.get("bits"):
        return Factors()
    fed = "error_feedback" in (config.get("wrap") or [])
    rounding = str(settings.get("rounding", "nearest"))
    readings = {
        MODEL: exchange.get("unit") == "model",
        RUNNING: str(settings.get("_target_")).endswith(".RunningUniform"),
        AGAIN: exchange.get("aggregation") == "sharded",
    }
    reading = ", ".join(name for name, holds in readings.items() if holds)
    return Factors(int(settings["bits"]), rounding, int(settings.get("block") or 0), fed, reading)


def plateaus(factors: Mapping[str, Factors]) -> tuple[Claim, ...]:
    """A claim for each setting of 8 bits without error feedback: does it end where the paper's does?"""
    low, high = REGIME
    return tuple(
        WORDS.claim(
            "plateau", Check(TEST, row, above=low, below=high),
            Check(TEST, DENSE, row, above=LEAST), id=f"plateau.{row}",
            premises=(Check(TEST, DENSE, above=high),), what=setting.label, **SAID,
        )
        for row, setting in factors.items()
        if setting.bits == CENTRE_BITS and not setting.error_feedback
    )  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    runs = [_named(run) for run in runs]
    require_alike(runs, ALIKE)
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
        __file__, scale, runs, frame,
        [Section("Settings", pivot(frame, labels, columns, first="setting"))], CLAIMS + plateaus(factors),
        labels=labels, data=PAPER.data, head=[("settings, runs", f"{len(factors)}, {len(runs)}")],
        said={"sentence": sentence(frame, factors)},
        figures={
            "sensitivity": partial(_figure, frame, factors, runs, scale),
            "curves": partial(_curves, factors, runs, scale),
        },
    )  # fmt: skip


def _named(run: Run) -> Run:
    """The run under this study's name of its row."""
    row = AS_TABLE_1.get(run.row, run.row)
    return replace(run, config=run.config | {"experiment": run.config["experiment"] | {"row": row}})


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
    """Which quantizers without error feedback end more than `LEAST` under dense on average."""
    plain = [row for row, setting in factors.items() if setting.bits and not setting.error_feedback]
    under = {row: float(np.mean(found)) for row in plain if (found := frames.of(frame, UNDER, row))}
    low = {row: mean for row, mean in under.items() if mean > LEAST}
    named = "; ".join(f"{factors[row].label} ({mean:.1f})" for row, mean in low.items())
    return (
        f"Quantizers without error feedback and with a dense run of the same seed: {len(under)}. "
        f"{len(low)} of them end on average more than {LEAST:g} points under dense"
        f"{': ' if named else ''}{named}. The paper's static 8-bit ends {GAP:.2f} points under its "
        "dense training."
    )


def _figure(
    frame: pd.DataFrame, factors: Mapping[str, Factors], runs: Sequence[Run], scale: str
) -> Figure:
    """A line of points for each setting: seeds, their mean, and the interval."""
    around = {r: f for r, f in factors.items() if f.bits == CENTRE_BITS or f == Factors(f.bits)}
    combined = {r: f for r, f in factors.items() if f.bits == GRID_BITS}
    names = {
        "one factor at a time around 8 bits": {r: f for r, f in around.items() if f.bits},
        f"all combinations at {GRID_BITS} bits": combined,
    }
    shown = [_strip(title, own, frame) for title, own in names.items() if own]
    said = (
        f"{facts.caption(runs, scale)}; large: mean, hollow with error feedback (EF); bars: 95 % interval "
        f"(from {MIN_SEEDS} seeds on); small: seeds; dotted: the paper's static 8-bit"
    )
    title = "Final test accuracy by quantizer"
    return plot.figure(title, said, shown, columns=2, size=(5.6, 4.4), legend=0)


def _strip(title: str, factors: Mapping[str, Factors], frame: pd.DataFrame) -> panels.Panel:
    under = {f: values for row, f in factors.items() if (values := frames.of(frame, UNDER, row))}
    looks = [
        Look(
            f.label, ROUNDINGS.get(f.rounding, plot.GREEN), dashes="--" if f.error_feedback else "-"
        )
        for f in under
    ]
    dots = panels.strip(
        list(under.values()), interval, looks, seeds=True, least=MIN_SEEDS, markersize=6, capsize=2
    )
    grey = {"color": "#888888", "linewidth": 1}
    return panels.panel(
        title, dots, lambda axes: axes.invert_yaxis(), x="points under dense (paired by seed)",
        at_x=[(0, grey), (GAP, {**grey, "linestyle": ":"})],
        yticks={place: f.label for place, f in enumerate(under)},
        otherwise="no runs with a dense run of the same seed",
    )  # fmt: skip


def _curves(factors: Mapping[str, Factors], runs: Sequence[Run], scale: str) -> Figure:
    """Test accuracy by epoch of dense and of 8 bits."""
    shown = [row for row, f in factors.items() if f.bits in (0, CENTRE_BITS) and not f.block]
    looks = {
        row: Look(factors[row].label, colour, "" if factors[row].bits else "o")
        for row, colour in zip(shown, plot.CYCLE, strict=False)
    }
    own = [run for run in runs if run.row in looks]
    curves = panels.curves(own, "test/accuracy_percent", looks, x="epoch")
    return plot.figure(
        "Test accuracy by epoch", facts.caption(own, scale),
        [panels.panel("8 bits", curves, x="epoch", y="test accuracy (%)")], size=(7.0, 4.4), legend=2,
    )  # fmt: skip
