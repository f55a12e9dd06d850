"""PowerSGD: how much of real gradients factors of rank 1, 2 and 4 keep, with a warm and a cold start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import BARS, Artifact, Rows, Shown, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, longer, percent, study_of
from dgc_repro.paper.lecture import by_number
from dgc_repro.paper.page import Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
KINDS = {"gradient": "gradients", "fed": "gradients with residuals"}
STARTS = {
    "best": "best approximation",
    "warm": "power iteration, warm start",
    "cold": "power iteration, cold start",
}
ROWS = {f"{k}, {s}": f"{KINDS[k]}, {STARTS[s]}" for k in KINDS for s in STARTS}
RANKS = (1, 2, 4)
ENERGY, SPECTRUM = "energy kept", "share of a singular value"
MOST, NEAR = 0.5, 0.9
"""Ours: a share that is most of the energy, and a share of the best approximation that is close to it."""


def _claims() -> Iterator[Claim]:
    for kind, label in KINDS.items():
        best, warm, cold = (f"{kind}, {start}" for start in STARTS)
        said = {"of": kind, "what": label.capitalize()}
        low = Check(ENERGY, best, above=MOST, setting=f"rank {RANKS[-1]}")
        more = [Check(ENERGY, warm, cold, setting=f"rank {rank}") for rank in RANKS]
        near = [
            Check(ENERGY, warm, best, NEAR, setting=f"rank {rank}", ratio=True) for rank in RANKS
        ]
        yield WORDS.claim("low", low, ours=True, **said)
        yield WORDS.claim("warm", *more, **said)
        yield WORDS.claim("near", *near, **said)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: energy kept by rank, and the mean share of each singular value over the matrices."""
    table = study_of(runs, ("model", "dataset", "train.batch_size", "launch.workers"))
    table["setting"] = table["rank"].astype(str)
    second_half = table["step"] > table["step"].max() // 2
    energy = table[(table["what"] == "energy") & second_half]
    energy = energy.assign(
        row=energy["of"] + ", " + energy["kind"], setting="rank " + energy["setting"]
    )
    values = table[(table["what"] == "spectrum") & (table["step"] == table["step"].max())]
    values = values.assign(row=values["of"] + ", spectrum")
    keys = ["row", "setting", "seed"]
    return join(
        *(
            longer(
                own.groupby(keys, sort=False)["value"].mean().reset_index(), {"value": (name, "")}
            )
            for own, name in ((energy, ENERGY), (values, SPECTRUM))
        )
    )


def _panels(shown: Shown) -> Iterator[panels.Panel]:
    """The spectrum after the last step, and the energy kept by rank."""
    # Colours that the lines of the other panels do not have.
    spectra = {
        f"{kind}, spectrum": Look(label, colour, marker)
        for (kind, label), colour, marker in zip(
            KINDS.items(), (plot.BLACK, plot.PURPLE), "oD", strict=True
        )
    }
    yield by_number(shown, SPECTRUM, spectra, "mean over matrices", x="singular value", log="y")
    for kind, label in KINDS.items():
        rows = {f"{kind}, {start}": name for start, name in STARTS.items()}
        yield by_number(shown, ENERGY, rows, label, x="rank", ylim=(0, 1))


page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Energy kept": Rows(
            ROWS, [Column(f"rank {r}", ENERGY, percent, f"rank {r}") for r in RANKS], "of"
        )
    },
    claims=tuple(_claims()),
    figures={
        "lowrank": drawing(
            "PowerSGD: rank of gradients, warm and cold start",
            lambda shown: list(_panels(shown)),
            BARS,
            legend=3,
        )
    },
    said=lambda shown: {
        "steps": shown.runs[0].summary["steps"],
        "workers": shown.runs[0].setting("launch.workers"),
    },
    alike=(),
)
