"""Table I of the dynamic-compression paper: accuracy, time and data of three methods; figures 1 to 3.

The figures are known as claims only: no printed series was digitized.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim, near, printed_table
from dgc_repro.paper.dynamic import DYNAMIC, LABELS, LOOKS, NONE, PAPER, STATIC
from dgc_repro.paper.frame import SENT, Column, Quantity, amount, count, pivot, seeds
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, of_rows, require_alike

WORDS = Template.read(__file__)
TABLE_1 = printed_table("Table I", "epochs, train [%], test [%], time [min], data [TB]", """
    none      70  96.09  92.96   65.12  2.31
    static8   70  82.03  85.97  122.13  1.82
    dynamic   70  94.53  91.40  101.64  2.03
""")  # fmt: skip
TRAIN, TEST, MINUTES = "train accuracy", "test accuracy", "training time"
EARLY, CATCH_UP = "early training loss", "catch-up of the training loss"
LATE_CHANGE = "late weight change"
OWN_PROCESSES = "workers with processes of their own"
RATE, TIME_SHARE, DATA_SHARE = "network rate", "training time of none's", "payload of none's"
FLOAT_BITS, STATIC_BITS, DYNAMIC_BITS = 32, 8, (4, 16)
CIFAR_STEM_PARAMETERS = 11_173_962  # ResNet18, 3x3 stem, 10 classes
TORCHVISION_PARAMETERS = 11_689_512  # torchvision's ResNet18, 1000 classes
CONSIDERABLY = 0.2
REGIME = (80.0, 86.0)
"""Claims 1 and 6 are about a static method that stops at 80 to 86 %: dense has to come that far."""
UNDER_DENSE_POINTS = 2.0
"""A row that ends more than this many points under dense has a plateau below it. Ours."""


def _third(epochs: int) -> int:
    return max(1, epochs // 3)


def _early_loss(run: Run) -> float:
    """Mean training loss of the first third of the epochs."""
    loss = run.epochs["train/loss"].to_numpy(float)
    return float(loss[: _third(len(loss))].mean())


def _late_change(run: Run) -> float:
    """Norm of the weight change in an epoch, mean over the last third."""
    if "weights/change_norm" not in run.epochs:
        return math.nan
    norm = run.epochs["weights/change_norm"].to_numpy(float)
    return float(norm[-_third(len(norm)) :].mean())


QUANTITIES = {
    "epochs": Quantity("epochs", lambda run: float(len(run.epochs))),
    TRAIN: Quantity("%", lambda run: run.last("train/accuracy_percent")),
    TEST: Quantity("%", lambda run: run.last("test/accuracy_percent")),
    MINUTES: Quantity("min", lambda run: run.last("time/train_seconds") / 60, "measured"),
    EARLY: Quantity("nats", _early_loss),
    CATCH_UP: Quantity("", lambda run: math.log(_early_loss(run) / run.last("train/loss"))),
    LATE_CHANGE: Quantity("", _late_change),
    OWN_PROCESSES: Quantity(
        "", lambda run: math.nan if run.setting("launch.kind") == "simulated" else 1.0
    ),
    RATE: Quantity("", lambda run: 1.0 if run.setting("network.rate") else math.nan),
    **SENT,
}


def _share(row: str, column: str) -> float:
    return TABLE_1(row, column) / TABLE_1(NONE, column)


def data_readings() -> dict[str, float]:
    """Readings of the printed dense volume: bytes of one worker's float32 gradients in 70 epochs. 64 images
    a step, 32 on each of two workers."""

    def volume(parameters: int, images: int) -> float:
        return 4.0 * parameters * -(-images // 64) * TABLE_1(NONE, "epochs")

    return {
        "CIFAR stem, 782 steps an epoch": volume(CIFAR_STEM_PARAMETERS, 50_000),
        "torchvision's ResNet18, 782 steps an epoch": volume(TORCHVISION_PARAMETERS, 50_000),
        "torchvision's ResNet18, 704 steps an epoch": volume(TORCHVISION_PARAMETERS, 45_000),
    }


def _numbers() -> dict[str, object]:
    """What the words of notes and claims are filled in with: the printed numbers, and the data column beside
    what the stated bit widths give of the printed dense volume."""
    shares = {row: _share(row, "data") for row in (STATIC, DYNAMIC)}
    low, high = (bits / FLOAT_BITS for bits in DYNAMIC_BITS)
    widths = {"static_width": STATIC_BITS / FLOAT_BITS, "low": low, "high": high}
    needed = {"least": high, "most": low}
    readings = [
        f"{name}: {size / 1e12:.3f} TB or {size / 2**40:.3f} TiB"
        for name, size in data_readings().items()
    ]
    return {
        **{f"{row}_{column}": TABLE_1(row, column) for row in TABLE_1.rows for column in TABLE_1.columns},
        **{name: TABLE_1(NONE, "data") * width for name, width in widths.items()},
        **{f"{row}_share": 100 * share for row, share in shares.items()},
        **{f"{row}_saves": 100 * (1 - share) for row, share in shares.items()},
        "static_bits": FLOAT_BITS * shares[STATIC],
        **{name: 100 * (shares[DYNAMIC] - w) / (1 - w) for name, w in needed.items()},
        "below": TABLE_1(STATIC, "train") - TABLE_1(STATIC, "test"),
        "slower": TABLE_1(STATIC, "time") / TABLE_1(DYNAMIC, "time"),
        "readings": "; ".join(readings),
        "gap": _gap, "train_gap": TABLE_1(DYNAMIC, "train") - TABLE_1(STATIC, "train"),
        "regime": f"Not tested where dense training ends under {REGIME[0]:g} %: the paper's static plateau "
        f"lies at {REGIME[0]:g} to {REGIME[1]:g} %.",
        "room": _room_text, "under": UNDER_DENSE_POINTS,
    }  # fmt: skip


def room_for(gap: float, dense: str = NONE) -> tuple[tuple[Check, ...], str]:
    """The premise of a claim about a gap of so many points under the row ``dense``, and its words."""
    least = REGIME[1] + gap
    return (
        (Check(TEST, dense, above=least),),
        f"Not tested where dense training ends under {least:.1f} %: above a plateau at {REGIME[0]:g} to "
        f"{REGIME[1]:g} % there would be no room for the gap.",
    )


_gap = TABLE_1(DYNAMIC, "test") - TABLE_1(STATIC, "test")
_has_room, _room_text = room_for(_gap / 2)
NUMBERS = _numbers()
NOTES = WORDS.noted(**NUMBERS)


def say(name: str, *checks: Check, **how: Any) -> Claim:
    """A claim in the words of the page."""
    return WORDS.claim(name, *checks, **NUMBERS, **how)


def _longer(*rows: str) -> list[Check]:
    """Each row's training time is above the next one's."""
    return [Check(MINUTES, a, b, above=1.0, ratio=True) for a, b in itertools.pairwise(rows)]


def _each(quantity: str) -> tuple[Check, ...]:
    return tuple(Check(quantity, row) for row in (NONE, STATIC, DYNAMIC))


_in_regime = (Check(TEST, NONE, above=REGIME[0]),)
_higher = Check(TEST, DYNAMIC, STATIC)
_slow_down = [
    Check(LATE_CHANGE, row, STATIC, above=1 / (1 - CONSIDERABLY), ratio=True)
    for row in (NONE, DYNAMIC)
]
_shares = [Check(DATA_SHARE, row, printed=100 * _share(row, "data")) for row in (STATIC, DYNAMIC)]
CLAIMS = (
    say("1", _higher, premises=_in_regime),
    say("1b", near(_higher, _gap, _gap / 2), premises=_has_room, ours=True),
    say("1c", Check(TRAIN, DYNAMIC, STATIC), premises=_in_regime),
    say("2", Check(TEST, NONE, DYNAMIC, above=-2.0, below=2.0)),
    say(
        "3", Check("payload", DYNAMIC, STATIC, above=1.0, ratio=True),
        Check("payload", NONE, DYNAMIC, above=1.0, ratio=True),
    ),
    say("3b", *_shares, cannot_follow=NOTES[0].arithmetic),
    say("4", *reversed(_longer(STATIC, DYNAMIC, NONE)), premises=_each(OWN_PROCESSES)),
    say("4b", *reversed(_longer(NONE, DYNAMIC, STATIC)), premises=_each(RATE), ours=True),
    say("5", Check(EARLY, DYNAMIC, NONE), Check(CATCH_UP, DYNAMIC, NONE)),
    say("5b", Check(EARLY, STATIC, DYNAMIC)),
    say("6", *_slow_down, premises=(Check(TEST, NONE, STATIC, above=UNDER_DENSE_POINTS),), ours=True),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one experiment."""
    require_alike(runs, facts.ALIKE)
    own = of_rows(runs, LABELS)
    found = frames.measure(own, QUANTITIES)
    shares = {TIME_SHARE: (MINUTES, "time"), DATA_SHARE: ("payload", "data")}
    frame = frames.join(
        found,
        *(frames.relative(found, q, NONE, name=name, unit="%") for name, (q, _) in shares.items()),
    )
    columns = {"epochs": "epochs", "train": TRAIN, "test": TEST, "time": MINUTES}
    known = frames.printed_numbers(TABLE_1, columns)
    of_none = {
        (row, name): 100 * _share(row, column)
        for row in TABLE_1.rows
        for name, (_, column) in shares.items()
    }
    accuracy = Column("test accuracy %", TEST, 2, printed=known)
    payload = Column("payload", "payload", amount)
    # Simulated workers share one process, so that a row's time is no time of a worker.
    timed = any(run.setting("launch.kind") != "simulated" for run in own)
    minutes = (
        Column("time min", MINUTES, 2, printed=known),
        Column("time, % of none", TIME_SHARE, 1, printed=of_none),
    )
    tables = {
        "Table I": (
            *(seeds(TEST), accuracy, payload),
            *([Column("training min", MINUTES, 2)] if timed else []),
        ),
        "Accuracy": (
            Column("epochs", "epochs", 0, printed=known),
            Column("train accuracy %", TRAIN, 2, printed=known),
            accuracy,
        ),
        "Time and data": (
            *(minutes if timed else ()),
            payload,
            Column("wire", "wire", amount),
            Column("floats", "floats sent", count),
            Column("payload, % of none", DATA_SHARE, 1, printed=of_none),
        ),
    }
    sections = [Section(title, pivot(frame, LABELS, columns)) for title, columns in tables.items()]
    traces = facts.traces(own)
    return made(
        __file__, scale, own, frame, [*sections, *([Section("Policy traces")] if traces else [])], CLAIMS,
        labels=LABELS, data=PAPER.data, said={"traces": "\n".join(f"- {line}" for line in traces)},
        printed=known, notes=NOTES, figures=_figures(own, scale),
    )  # fmt: skip


FIGURES = {
    "figure 1: training accuracy": ("train/accuracy_percent", "training accuracy (%)"),
    "figure 2: test accuracy": ("test/accuracy_percent", "test accuracy (%)"),
    "figure 3: training loss": ("train/loss", "cross-entropy (nats)"),
}


def _figures(runs: Sequence[Run], scale: str) -> dict[str, Callable[[], Figure]]:
    """Figures 1 to 3 in one; all rows; the policy's trace."""
    curves = [
        panels.panel(name, panels.curves(runs, metric, LOOKS, x="epoch"), x="epoch", y=label)
        for name, (metric, label) in FIGURES.items()
    ]
    traced = [run for run in runs if "dynamic" in run.row and "policy/rung" in run.epochs]
    rungs = [_rungs(row, traced) for row in dict.fromkeys(run.row for run in traced)]
    said, of_traced = facts.caption(runs, scale), facts.caption(traced, scale)
    drawn = {"table1": lambda: plot.figure("Dynamic compression, figures 1 to 3", said, curves)}
    if traced:
        title = "Dynamic compression: bits in force by epoch"
        drawn["policy"] = lambda: plot.figure(title, of_traced, rungs, columns=2, legend=6)
    return drawn


def _rungs(row: str, traced: Sequence[Run]) -> panels.Panel:
    """The rung by epoch, a line a seed; a small offset keeps seeds on one rung apart."""
    labels: dict[float, str] = {}
    runs, lines = [run for run in traced if run.row == row], []
    for place, run in enumerate(runs):
        rungs = run.epochs["policy/rung"].astype(int)
        labels |= dict(zip(rungs, run.epochs["policy/label"].astype(str), strict=True))
        aside = rungs + 0.08 * (place - (len(runs) - 1) / 2)
        look = {"color": plot.CYCLE[place % len(plot.CYCLE)], "drawstyle": "steps-mid"}
        lines.append(panels.lines([(run.epochs["epoch"], aside)], f"seed {run.seed}", **look))
    return panels.panel(
        f"rung, {LABELS[row]}", *lines, x="epoch", y="rung (higher compresses more)",
        yticks=dict(sorted(labels.items())),
    )  # fmt: skip
