"""Table I of the dynamic-compression paper: accuracy, time and data of three methods; figures 1 to 3.

The figures are known as claims only: no printed series was digitized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, panels
from dgc_repro.paper import frame as frames
from dgc_repro.paper.artifact import ACCURACY, BANDS, Artifact, Shown, drawing
from dgc_repro.paper.claims import Check, near, printed_table
from dgc_repro.paper.dynamic import DYNAMIC, LOOKS, NONE, PAPER, STATIC
from dgc_repro.paper.frame import Column, Quantity, Relative, amount, seeds
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import estimate
from dgc_repro.paper.verdict import MIN_SEEDS, paired

WORDS = Template.read(__file__)
TRAIN, TEST, MINUTES = "train accuracy", "test accuracy", "training time"
TABLE_1 = printed_table("Table I", f"epochs, {TRAIN} [%], {TEST} [%], {MINUTES} [min], data [TB]", """
    none      70  96.09  92.96   65.12  2.31
    static8   70  82.03  85.97  122.13  1.82
    dynamic   70  94.53  91.40  101.64  2.03
""")  # fmt: skip
EARLY, CATCH_UP = "early training loss", "catch-up of the training loss"
LATE_CHANGE = "late weight change"
OWN_TIME = "training time in a process of its own"
TIME_SHARE, DATA_SHARE = "training time of none's", "payload of none's"
CONSIDERABLY = 0.2
REGIME = (80.0, 86.0)
"""Claims 1, 1b and 1c are about a static method that stops at 80 to 86 %: dense has to come that far."""
UNDER_DENSE_POINTS = 2.0
"""A row that ends more than this many points under dense has a plateau below it. Ours."""
AS_NONE_POINTS = 2.0
"""Dynamic ends like no compression within so many points, either way. Ours: the paper prints 1.56."""
NOTES = WORDS.notes


def _early_loss(run: Run) -> float:
    """Mean training loss of the first third of the epochs."""
    loss = run.epochs["train/loss"].to_numpy(float)
    return float(loss[: max(1, len(loss) // 3)].mean())


def _late_change(run: Run) -> float:
    """Norm of the weight change in an epoch, mean over the last third."""
    if "weights/change_norm" not in run.epochs:
        return math.nan
    norm = run.epochs["weights/change_norm"].to_numpy(float)
    return float(norm[-max(1, len(norm) // 3) :].mean())


def _minutes(run: Run) -> float:
    return run.last("time/train_seconds") / 60


def _own_minutes(run: Run) -> float:
    """Minutes in training steps; NaN for simulated workers, which share one process."""
    return math.nan if run.setting("launch.kind") == "simulated" else _minutes(run)


QUANTITIES: dict[str, Quantity | Relative] = {
    "epochs": Quantity("epochs", lambda run: float(len(run.epochs))),
    TRAIN: Quantity("%", lambda run: run.last("train/accuracy_percent")),
    TEST: ACCURACY,
    MINUTES: Quantity("min", _minutes, "measured"),
    OWN_TIME: Quantity("min", _own_minutes, "measured"),
    "data": Quantity("TB", lambda run: run.last("comm/payload_bytes") / 1e12),
    EARLY: Quantity("nats", _early_loss),
    CATCH_UP: Quantity("", lambda run: math.log(_early_loss(run) / run.last("train/loss"))),
    LATE_CHANGE: Quantity("", _late_change),
    TIME_SHARE: Relative(OWN_TIME, NONE, "%"),
    DATA_SHARE: Relative("data", NONE, "%"),
}


def of_none(column: str) -> dict[str, float]:
    """A printed column in percent of the uncompressed row."""
    return {row: 100 * TABLE_1(row, column) / TABLE_1(NONE, column) for row in TABLE_1.rows}


def _share(heading: str, share: str, column: str) -> Column:
    printed = {(row, share): round(percent, 1) for row, percent in of_none(column).items()}
    return Column(f"{heading}, % of none", share, 1, printed=printed)


def room_for(gap: float, dense: str = NONE) -> tuple[Check, ...]:
    """The premise of a claim about a gap of so many points under the row ``dense``: above the plateau there
    is room for the gap."""
    return (Check(TEST, dense, above=REGIME[1] + gap),)


GAP = TABLE_1(DYNAMIC, TEST) - TABLE_1(STATIC, TEST)
UNDER_NONE = TABLE_1(NONE, TEST) - TABLE_1(DYNAMIC, TEST)
_in_regime = (Check(TEST, NONE, above=REGIME[0]),)
_higher = Check(TEST, DYNAMIC, STATIC)
_as_none = Check(
    TEST, NONE, DYNAMIC, above=-AS_NONE_POINTS, below=AS_NONE_POINTS, printed=UNDER_NONE
)
_slow_down = [
    Check(LATE_CHANGE, row, STATIC, above=1 / (1 - CONSIDERABLY), ratio=True)
    for row in (NONE, DYNAMIC)
]
_order = [
    Check("payload", a, b, above=1.0, ratio=True) for a, b in ((DYNAMIC, STATIC), (NONE, DYNAMIC))
]
_shares = [
    near(Check(DATA_SHARE, row), share, (100 - share) / 2)
    for row, share in of_none("data").items()
    if row != NONE
]
_plateau = (Check(TEST, NONE, STATIC, above=UNDER_DENSE_POINTS),)
_own_times = [Check(OWN_TIME, row) for row in (NONE, STATIC, DYNAMIC)]
_longer = [
    Check(MINUTES, a, b, above=1.0, ratio=True) for a, b in ((DYNAMIC, NONE), (STATIC, DYNAMIC))
]
say = WORDS.claim
CLAIMS = (
    say("1", _higher, premises=_in_regime),
    say("1b", near(_higher, GAP, GAP / 2), premises=room_for(GAP / 2), ours=True),
    say("1c", Check(TRAIN, DYNAMIC, STATIC), premises=_in_regime),
    say("2", _as_none, ours=True),
    say("3", *_order),
    say("3b", *_shares, cannot_follow=NOTES[0].arithmetic, ours=True),
    say("4", *_longer, premises=tuple(_own_times)),
    say("5", Check(EARLY, DYNAMIC, NONE), Check(CATCH_UP, DYNAMIC, NONE)),
    say("5b", Check(EARLY, STATIC, DYNAMIC)),
    say("6", *_slow_down, premises=_plateau, ours=True),
)


def _traces(shown: Shown) -> pd.DataFrame | None:
    return facts.traces(shown.runs, {row: look.label for row, look in shown.looks.items()})


def _said(shown: Shown) -> dict[str, str]:
    """What the runs say of the plateau, from the difference of the uncompressed and the static row."""
    gaps = paired(_plateau[0], shown.frame)
    if len(gaps) < MIN_SEEDS:
        return {"plateau": ""}
    gap = estimate(gaps, ratio=False)
    dense, static = (
        float(np.mean(frames.of(shown.frame, name, row)))
        for name, row in ((TEST, NONE), (DATA_SHARE, STATIC))
    )
    sent = f"Static 8-bit sends {static:.1f} % of the bytes of uncompressed training"
    if dynamic := frames.of(shown.frame, DATA_SHARE, DYNAMIC):
        sent += f", and dynamic {np.mean(dynamic):.1f} %"
    ends = f"{gap.low:.1f} to {gap.high:.1f}"
    plateau = f"The paper's plateau of {REGIME[0]:.0f} to {REGIME[1]:.0f} %"
    if gap.high < UNDER_DENSE_POINTS:
        ends, shows = f"at most {gap.high:.1f}", f"{plateau} did not appear."
        if any(run.data != PAPER.data for run in shown.runs):
            shows = f"{plateau} is of {PAPER.data}, and is not tested here."
        elif dense < REGIME[1]:
            shows = (
                f"{plateau} could not be seen, because uncompressed training ends at {dense:.1f} %."
            )
    elif gap.low > UNDER_DENSE_POINTS:
        shows = "The paper prints such a plateau."
    else:
        shows = "Whether there is a plateau stays open."
    below = f"Static 8-bit training ends {ends} points below uncompressed training (95 % interval)."
    shows = f"{below} {shows}"
    return {"plateau": f"{shows} {sent}."}


def _figure(shown: Shown) -> list[panels.Panel]:
    """Differences from training without compression, which would hide one another as curves; the bits."""
    drawn = {
        "figure 1: training accuracy": ("train/accuracy_percent", "change of accuracy (points)"),
        "figure 2: test accuracy": ("test/accuracy_percent", "change of accuracy (points)"),
        "figure 3: training loss": ("train/loss", "change of cross-entropy (nats)"),
    }
    adapts = [run for run in shown.runs if "dynamic" in run.row]
    bits = _bits(adapts)
    rungs = panels.curves(adapts, "policy/rung", shown.looks, x="epoch")
    line = panels.rule("y", 0, label=LOOKS[NONE].label, linewidth=1.2)
    return [
        *(
            panels.panel(
                title, line, shown.curves(metric, "epoch", against=NONE), x="epoch", y=label,
                otherwise="no runs with an uncompressed run of the same seed",
            )
            for title, (metric, label) in drawn.items()
        ),
        panels.panel(
            "bits in use", rungs, x="epoch", y="bits of a value", yticks=bits,
            ylim=(max(bits) + 0.2, min(bits) - 0.2) if bits else None,
        ),
    ]  # fmt: skip


def _bits(runs: Sequence[Run]) -> dict[float, str] | None:
    """The policy's rungs in words; None where the records have only their numbers."""
    known = [run.epochs for run in runs if "policy/label" in run.epochs]
    pairs = {
        float(rung): str(label).removeprefix("bits=").replace("dense", "32 (none)")
        for epochs in known
        for rung, label in zip(epochs["policy/rung"], epochs["policy/label"], strict=True)
    }
    return dict(sorted(pairs.items())) or None


page = Artifact(
    __file__,
    rows=LOOKS,
    quantities=QUANTITIES,
    printed=TABLE_1,
    tables={
        "Table I": (
            *(seeds("payload"), Column(f"{TEST} %", TEST, 2)),
            _share("payload", DATA_SHARE, "data"),
        ),
        "All columns": (
            *(seeds("payload"), Column("epochs", "epochs", 0)),
            *(Column(f"{name} %", name, 2) for name in (TRAIN, TEST)),
            *(_share("time", TIME_SHARE, MINUTES), _share("payload", DATA_SHARE, "data")),
            Column("payload", "payload", amount),
        ),
        "Epochs by plan of the policy": _traces,
    },
    claims=CLAIMS,
    notes=NOTES,
    data=PAPER.data,
    said=_said,
    figures={
        "table1": drawing(
            "Dynamic and static compression: difference from training without compression",
            _figure,
            "Each curve is a run less the run without compression of the same seed, by epoch. "
            + BANDS,
            columns=2,
        )
    },
)
