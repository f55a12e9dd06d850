"""Which plain quantizer ends below dense training? The study around the plateau of the paper's static 8-bit.

One factor at a time around plain 8-bit (bits, rounding, scale, error feedback), and at 4 bits all
combinations of the other three. Scale medium has the readings of "8-bit" that the paper leaves open, beside
the runs of Table I.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.artifact import ACCURACY, Artifact, Shown, drawing
from dgc_repro.paper.claims import Check, near
from dgc_repro.paper.dynamic import NONE, PAPER, STATIC
from dgc_repro.paper.dynamic.table1 import REGIME, TABLE_1, TEST, room_for
from dgc_repro.paper.dynamic.table1 import UNDER_DENSE_POINTS as LEAST
from dgc_repro.paper.frame import SENT, Column, Quantity, Relative, Values, pivot, seeds, signed
from dgc_repro.paper.page import Page, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import interval
from dgc_repro.paper.verdict import MIN_SEEDS

WORDS = Template.read(__file__)
ALSO = ("table1",)
"""Artifacts whose runs this one uses too (paper/publish.py)."""
DENSE, PLAIN_8 = "dense", "bits8_nearest_blockNone"
AS_TABLE_1 = {NONE: DENSE, STATIC: PLAIN_8}
"""Rows of Table I that are settings of this study too, where a scale has both."""
UNDER, SHARE = "points under dense", "payload of dense's"
GAP = TABLE_1(NONE, TEST) - TABLE_1(STATIC, TEST)
COLOURS = {"nearest": plot.BLACK, "toward": plot.ORANGE, "stochastic": plot.BLUE}
READINGS = {
    "bits8_model": "8-bit, nearest, one scale per model",
    "bits8_running": "8-bit, nearest, a scale that never falls",
    "bits8_again": "8-bit, nearest, tensor, mean quantized again",
    "weights8": "8-bit weights, not gradients",
}
SETTINGS = (
    *("bits2_nearest_blockNone", "bits3_nearest_blockNone"),
    *(
        f"bits4_{rounding}_block{block}{fed}"
        for rounding in ("nearest", "stochastic", "toward_zero")
        for block in ("None", "2048")
        for fed in ("", "_ef")
    ),
    *("bits6_nearest_blockNone", PLAIN_8, f"{PLAIN_8}_ef", "bits8_nearest_block2048"),
    *("bits8_stochastic_blockNone", "bits8_toward_zero_blockNone"),
    *("bits12_nearest_blockNone", "bits16_nearest_blockNone"),
)


def _look(row: str) -> Look:
    """The setting in words: its row has bits, rounding, block, and error feedback."""
    bits, *rounding, block = row.removeprefix("bits").removesuffix("_ef").split("_")
    scale = "tensor" if block == "blockNone" else block.replace("block", "block ")
    fed = row.endswith("_ef")
    label = ", ".join([f"{bits}-bit", " ".join(rounding), scale, *(["EF"] if fed else [])])
    return Look(label, COLOURS[rounding[0]], dashes="--" if fed else "-")


LOOKS = {
    DENSE: Look(DENSE, plot.BLACK),
    **{row: _look(row) for row in SETTINGS},
    **{row: Look(label, plot.GREEN) for row, label in READINGS.items()},
}
LABELS = {row: look.label for row, look in LOOKS.items()}
_under = Check(TEST, DENSE, PLAIN_8)
CLAIMS = (
    WORDS.claim("static8", near(_under, GAP, GAP / 2), premises=room_for(GAP / 2, DENSE), ours=True),
    WORDS.claim(
        "plain", replace(_under, above=-LEAST, below=LEAST),
        premises=(Check(TEST, DENSE, above=REGIME[0]),),
    ),
    *(
        WORDS.claim(
            "plateau", Check(TEST, row, above=REGIME[0], below=REGIME[1]),
            Check(TEST, DENSE, row, above=LEAST), id=f"plateau.{row}",
            premises=(Check(TEST, DENSE, above=REGIME[1]),), what=label, ours=True,
        )
        for row, label in LABELS.items()
        if label.startswith("8-bit") and not row.endswith("_ef")
    ),
)  # fmt: skip


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: accuracy and payload, and both against the dense run of the same seed."""
    quantities: dict[str, Quantity | Relative] = {
        TEST: ACCURACY,
        "payload": SENT["payload"],
        SHARE: Relative("payload", DENSE, "%"),
    }
    found = frames.measure(runs, quantities)
    own = found[found["quantity"] == TEST]
    base = own["seed"].map(own[own["row"] == DENSE].set_index("seed")["value"])
    under = own.assign(value=base - own["value"], quantity=UNDER, unit="points")
    return frames.join(found, under.dropna(subset="value"))


def _interval(values: Values) -> str:
    if len(values) < MIN_SEEDS:
        return "-"
    _, low, high = interval(values)
    return f"{low:+.2f} to {high:+.2f}"


COLUMNS = (
    seeds(TEST),
    Column("test accuracy %", TEST, 2),
    Column("points under dense", UNDER, lambda values: signed(values, 2)),
    Column("95 % interval", UNDER, _interval),
    Column("payload, % of dense", SHARE, 1),
)


def _table(shown: Shown) -> pd.DataFrame:
    """The settings that have runs."""
    own = {row: label for row, label in LABELS.items() if frames.of(shown.frame, TEST, row)}
    return pivot(shown.frame, own, COLUMNS, first="setting")


def _said(shown: Shown) -> dict[str, str]:
    """Which quantizers without error feedback end more than `LEAST` under dense on average."""
    plain = [row for row in LABELS if row != DENSE and not row.endswith("_ef")]
    under = {row: np.mean(own) for row in plain if (own := frames.of(shown.frame, UNDER, row))}
    low = [f"{LABELS[row]} ({mean:.1f})" for row, mean in under.items() if mean > LEAST]
    return {"low": "; ".join(low) or "none", "count": f"{len(under)}"}


def _figure(shown: Shown) -> list[panels.Panel]:
    """A line of points for each setting: seeds, their mean, and the interval."""
    under = {row: frames.of(shown.frame, UNDER, row) for row in LOOKS if row != DENSE}
    rows = [row for row, values in under.items() if values]
    looks = [LOOKS[row] for row in rows]
    dots = panels.strip([under[row] for row in rows], interval, looks, seeds=True, least=MIN_SEEDS)
    return [
        panels.panel(
            "", panels.rule("x", 0), panels.rule("x", GAP, linestyle=":"), dots,
            lambda axes: axes.invert_yaxis(), x="cost, points of accuracy (paired by seed)",
            yticks={place: look.label for place, look in enumerate(looks)},
            otherwise="no runs with a dense run of the same seed",
        )
    ]  # fmt: skip


ARTIFACT = Artifact(
    __file__,
    rows=LOOKS,
    numbers=numbers,
    tables={"Settings": _table},
    claims=CLAIMS,
    data=PAPER.data,
    said=_said,
    alike=(
        *(key for key in facts.ALIKE if key != "optimizer"),  # some round the weights
        *(f"optimizer.{key}" for key in ("lr", "momentum", "weight_decay", "reference_batch")),
    ),
    figures={
        "sensitivity": drawing(
            "What quantizers cost in final accuracy",
            _figure,
            "The cost is the accuracy of dense training less that of the setting with the same seed. Large "
            "points are means, hollow with error feedback (EF); small points are seeds. Bars are 95 % "
            f"intervals, from {MIN_SEEDS} seeds on. The dotted line is static 8-bit in the paper.",
            legend=0,
            size=(7.0, 5.4),
        )
    },
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    return ARTIFACT([_named(run) for run in runs], scale)


def _named(run: Run) -> Run:
    """The run under this study's name of its row."""
    row = AS_TABLE_1.get(run.row, run.row)
    return replace(run, config=run.config | {"experiment": run.config["experiment"] | {"row": row}})
