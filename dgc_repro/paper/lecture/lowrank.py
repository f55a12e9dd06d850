"""PowerSGD: how much of real gradients factors of rank 1, 2 and 4 keep, with a warm and a cold start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, longer, percent, pivot
from dgc_repro.paper.lecture import study_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
GRADIENT, FED = "gradient", "fed"
LABELS = {GRADIENT: "gradients", FED: "gradients with residuals"}
BEST, WARM, COLD = "best", "warm", "cold"
LOOKS = {
    BEST: Look("best approximation", plot.BLACK),
    WARM: Look("power iteration, warm start", plot.BLUE),
    COLD: Look("power iteration, cold start", plot.ORANGE, dashes="--"),
}
ROWS = {f"{k}, {s}": f"{LABELS[k]}, {look.label}" for k in LABELS for s, look in LOOKS.items()}
RANKS, PLACES = (1, 2, 4), (1, 2, 4, 8, 16)
ENERGY, SPECTRUM = "energy kept", "energy of a singular value"
MOST, NEAR = 0.5, 0.9
"""Ours: a share that is most of the energy, and a share of the best approximation that is close to it."""
DRAWN_STEPS = 10
"""Steps of the running mean in the figure."""


def _claims(kind: str) -> Iterator[Claim]:
    best, warm, cold = (f"{kind}, {start}" for start in (BEST, WARM, COLD))
    said = {"of": kind, "what": LABELS[kind].capitalize()}
    at = [f"rank {rank}" for rank in RANKS]
    more = [Check(ENERGY, warm, cold, setting=rank) for rank in at]
    near = [Check(ENERGY, warm, best, NEAR, setting=rank, ratio=True) for rank in at]
    yield WORDS.claim("low", Check(ENERGY, best, above=MOST, setting=at[-1]), ours=True, **said)
    yield WORDS.claim("warm", *more, **said)
    yield WORDS.claim("near", *near, ours=True, **said)


CLAIMS = tuple(claim for kind in LABELS for claim in _claims(kind))


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
    frame, steps = numbers(table), sorted(spectra(table)["step"].unique())
    taken = {f"{k}, step {s}": f"{label}, step {s}" for k, label in LABELS.items() for s in steps}
    energy = [Column(f"rank {r}", ENERGY, percent, f"rank {r}") for r in RANKS]
    two = partial(percent, decimals=2)
    shares = [Column(f"i = {i}", SPECTRUM, two, f"value {i}") for i in PLACES]
    shown = [
        panels.panel(
            "spectrum, mean over matrices", *_spectrum(table), x="singular value i",
            y="share of the squared norm", log="xy",
        ),
        *(
            panels.panel(
                f"energy kept: {label}", *_energy(table, kind), x="step",
                y="share of the squared norm kept", ylim=(0, 1),
            )
            for kind, label in LABELS.items()
        ),
    ]  # fmt: skip
    caption = (
        f"{facts.caption(runs, scale)}; mean over seeds; right: running mean over {DRAWN_STEPS} steps, "
        "thin to thick lines: rank 1, 2, 4"
    )
    title = "PowerSGD: rank of gradients, warm and cold start"
    return made(
        __file__, scale, runs, frame,
        [
            Section("Energy kept", pivot(frame, ROWS, energy, first="of")),
            Section("Spectrum", pivot(frame, taken, shares, first="of")),
        ],
        CLAIMS, labels=ROWS,
        said={
            "steps": facts.distinct(run.summary["steps"] for run in runs),
            "workers": facts.distinct(run.setting("launch.workers") for run in runs),
            "matrices": table.loc[table["what"] == "spectrum", "tensor"].nunique(),
        },
        figures={"lowrank": lambda: plot.figure(title, caption, shown, legend=3)},
    )  # fmt: skip


def _spectrum(table: pd.DataFrame) -> Iterator[panels.Draw]:
    shares = spectra(table)
    for kind, colour, dashes in ((GRADIENT, plot.GREEN, "-"), (FED, plot.PURPLE, "--")):
        own = shares[shares["of"] == kind]
        for step, marker in zip(sorted(own["step"].unique()), plot.MARKERS, strict=False):
            look = Look(f"{LABELS[kind]}, step {step}", colour, marker, dashes)
            yield panels.means(own[own["step"] == step], "rank", "value", **look.line)


def _energy(table: pd.DataFrame, kind: str) -> Iterator[panels.Draw]:
    """The energy kept by step."""
    own = table[(table["what"] == "energy") & (table["of"] == kind)]
    for start, look in LOOKS.items():
        for rank, width in zip(RANKS, (0.9, 1.6, 2.6), strict=True):
            line = own[(own["kind"] == start) & (own["rank"] == rank)]
            means = line.groupby("step")["value"].mean()
            curve = means.rolling(DRAWN_STEPS, center=True, min_periods=1).mean()
            label = look.label if rank == RANKS[1] else None
            how = look.line | {"marker": "", "linewidth": width, "label": label}
            yield panels.lines([(curve.index, curve)], **how)
