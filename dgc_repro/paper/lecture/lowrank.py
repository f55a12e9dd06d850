"""PowerSGD: how much of real gradients factors of rank 1, 2 and 4 keep, with a warm and a cold start."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim
from dgc_repro.paper.frame import Column, join, longer, percent, pivot
from dgc_repro.paper.lecture import study_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

GRADIENT, FED = "gradient", "fed"
LABELS = {GRADIENT: "gradients", FED: "gradients with residuals"}
BEST, WARM, COLD = "best", "warm", "cold"
LOOKS = {
    BEST: Look("best approximation", plot.BLACK),
    WARM: Look("power iteration, warm start", plot.BLUE),
    COLD: Look("power iteration, cold start", plot.ORANGE, dashes="--"),
}
RANKS, PLACES = (1, 2, 4), (1, 2, 4, 8, 16)
ENERGY, SPECTRUM = "energy kept", "energy of a singular value"
MOST, NEAR = 0.5, 0.9
"""Ours: a share that is most of the energy, and a share of the best approximation that is close to it."""
DRAWN_STEPS = 10
"""Steps of the running mean in the figure."""
SLIDE = "PowerSGD: low rank"


def row_of(kind: str, start: str) -> str:
    """The row of the frame."""
    return f"{kind}, {start}"


ROWS = {row_of(k, s): f"{LABELS[k]}, {look.label}" for k in LABELS for s, look in LOOKS.items()}


def _checks(greater: str, lesser: str | None = None, **more: float) -> tuple[Check, ...]:
    """The same comparison at each rank."""
    is_ratio = lesser is not None and "above" in more
    return tuple(
        Check(ENERGY, greater, lesser, setting=f"rank {r}", ratio=is_ratio, **more) for r in RANKS
    )  # fmt: skip


CLAIMS = tuple(
    claim
    for kind, label in LABELS.items()
    for claim in (
        Claim(
            f"{kind}.low",
            f"{label.capitalize()} have low rank: rank {RANKS[-1]} keeps most of the energy.", SLIDE,
            (Check(ENERGY, row_of(kind, BEST), above=MOST, setting=f"rank {RANKS[-1]}"),),
            f"Share of the best approximation, above {MOST:.0%}.", margin=OURS,
        ),
        Claim(
            f"{kind}.warm", f"{label.capitalize()}: a warm start keeps more than a cold start.", SLIDE,
            _checks(row_of(kind, WARM), row_of(kind, COLD)), "At each of the three ranks.",
        ),
        Claim(
            f"{kind}.near", f"{label.capitalize()}: a warm start comes close to the best approximation.",
            EXPECTED, _checks(row_of(kind, WARM), row_of(kind, BEST), above=NEAR),
            f"Above {NEAR:.0%} of it at each of the three ranks.", margin=OURS,
        ),
    )
)  # fmt: skip


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The frame. ``table``: lines with the columns seed and of (gradient or fed)."""
    energy = table[(table["what"] == "energy") & (table["step"] > table["step"].max() // 2)]
    kept = energy.groupby(["of", "kind", "rank", "seed"])["value"].mean().reset_index()
    kept["row"] = kept["of"] + ", " + kept["kind"]
    kept["setting"] = "rank " + kept["rank"].astype(str)
    shares = spectra(table)
    shares["row"] = shares["of"] + ", step " + shares["step"].astype(str)
    shares["setting"] = "value " + shares["rank"].astype(str)
    # The step is part of the row: a line with a step is a point of a curve.
    return join(
        longer(kept, {"value": (ENERGY, "")}),
        longer(shares.drop(columns="step"), {"value": (SPECTRUM, "")}),
    )


def spectra(table: pd.DataFrame) -> pd.DataFrame:
    """The mean share of each place over the matrices."""
    lines = table[table["what"] == "spectrum"]
    return lines.groupby(["of", "step", "rank", "seed"])["value"].mean().reset_index()


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    rows = dict.fromkeys(run.row for run in runs)
    keys = ("model", "dataset", "train.batch_size", "launch.workers")
    table = pd.concat(
        study_of([run for run in runs if run.row == row], keys).assign(of=row) for row in rows
    )
    frame = numbers(table)
    said = {
        "steps": facts.distinct(run.summary["steps"] for run in runs),
        "workers": facts.distinct(run.setting("launch.workers") for run in runs),
        "matrices": table.loc[table["what"] == "spectrum", "tensor"].nunique(),
    }
    return made(
        __file__,
        scale,
        runs,
        frame,
        _sections(frame, table),
        CLAIMS,
        labels=ROWS,
        said=said,
        figures={"lowrank": partial(_figure, table, runs, scale)},
    )


def _sections(frame: pd.DataFrame, table: pd.DataFrame) -> list[Section]:
    steps = sorted(spectra(table)["step"].unique())
    taken = {f"{k}, step {s}": f"{label}, step {s}" for k, label in LABELS.items() for s in steps}
    energy = [Column(f"rank {r}", ENERGY, percent, f"rank {r}") for r in RANKS]
    shares = [
        Column(f"i = {i}", SPECTRUM, partial(percent, decimals=2), f"value {i}") for i in PLACES
    ]
    return [
        Section("Energy kept", pivot(frame, ROWS, energy, first="of")),
        Section("Spectrum", pivot(frame, taken, shares, first="of")),
    ]


def _figure(table: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    """The spectrum; the energy kept by step, of gradients and of gradients with residuals."""

    def spectrum(axes: Axes) -> None:
        shares = spectra(table)
        for kind, colour, dashes in ((GRADIENT, plot.GREEN, "-"), (FED, plot.PURPLE, "--")):
            own = shares[shares["of"] == kind]
            for step, marker in zip(sorted(own["step"].unique()), plot.MARKERS, strict=False):
                look = Look(f"{LABELS[kind]}, step {step}", colour, marker, dashes)
                plot.means(axes, own[own["step"] == step], "rank", "value", **look.line)
        plot.name_axes(axes, "singular value i", "share of the squared norm", "xy")

    def energy(axes: Axes, kind: str) -> None:
        own = table[(table["what"] == "energy") & (table["of"] == kind)]
        for start, look in LOOKS.items():
            for rank, width in zip(RANKS, (0.9, 1.6, 2.6), strict=True):
                line = own[(own["kind"] == start) & (own["rank"] == rank)]
                means = line.groupby("step")["value"].mean()
                curve = means.rolling(DRAWN_STEPS, center=True, min_periods=1).mean()
                label = look.label if rank == RANKS[1] else None
                how = look.line | {"marker": "", "linewidth": width, "label": label}
                axes.plot(curve.index, curve, **how)
        axes.set_ylim(0, 1)
        plot.name_axes(axes, "step", "share of the squared norm kept")

    panels: plot.Panels = [
        ("spectrum, mean over matrices", spectrum),
        *((f"energy kept: {label}", partial(energy, kind=kind)) for kind, label in LABELS.items()),
    ]
    said = f"{facts.caption(runs, scale)}; mean over seeds; right: running mean over {DRAWN_STEPS} steps, "
    said += "thin to thick lines: rank 1, 2, 4"
    return plot.figure("PowerSGD: rank of gradients, warm and cold start", said, panels, legend=3)
