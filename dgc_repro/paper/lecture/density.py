"""Allreduce of compressed gradients: density of sums of sparse gradients, bits of sums of codes.

Random supports beside 1 - (1 - d)^N; supports of real gradients, without and with residuals, beside
independent supports of the same sizes in the same tensors; sums of codes beside the worst case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from dgc_repro.paper import facts
from dgc_repro.paper.artifact import BARS, Artifact, Rows, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, longer, percent, study_of, times
from dgc_repro.paper.lecture import by_number, first
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
KINDS = {
    "random": "random supports",
    "gradient": "real gradients",
    "error-fed": "real gradients with residuals",
}
DENSITY, INDEPENDENT = "density of the sum", "density of independent supports"
SHARE = "independent / measured density"
RING, GATHER = "bytes of a ring of sums", "bytes of an allgather"
BITS, WORKERS = "bits more than one code", "workers"
OF_SUPPORTS = {"value": (DENSITY, ""), "theory": (INDEPENDENT, ""), "share": (SHARE, "")}
OF_SUPPORTS |= {"ring_over_dense": (RING, "of a dense ring's")}
OF_SUPPORTS |= {"workers": (WORKERS, ""), "gather_over_dense": (GATHER, "of a dense ring's")}
FACTORS, BITS_OF_CODES = (10, 100, 1000), (4, 8)
MOST = "the most workers"
"""The setting under which the frame has the sums of the most workers again."""
ROWS = {f"{kind}, {f}x": f"{label}, {f}x" for kind, label in KINDS.items() for f in FACTORS}
INDEPENDENT_OF = "independent supports of the sizes of "
"""With the label of a row: the row that its density is compared with."""
CODES = {f"{bits}-bit codes": f"{bits}-bit codes" for bits in BITS_OF_CODES}
HALF = 0.5
"""Ours: the density at which entries of 8 bytes (value and place) are as large as all values of 4 bytes."""


def _claims() -> Iterator[Claim]:
    for kind, what in list(KINDS.items())[1:]:
        dense = Check(DENSITY, f"{kind}, {FACTORS[0]}x", above=HALF, setting=MOST)
        yield WORDS.claim("dense", dense, id=f"dense.{kind}", ours=True, what=what)
        for factor in FACTORS:
            row = f"{kind}, {factor}x"
            sparser = Check(
                DENSITY, INDEPENDENT_OF + ROWS[row], row, above=1.0, setting=MOST, ratio=True
            )
            yield WORDS.claim("overlap", sparser, id=f"{kind}.{factor}", what=what, factor=factor)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are kinds of supports with a factor, and codes; settings are numbers of workers."""
    table = study_of(runs, ("model", "dataset", "train.batch_size", "launch.workers"))
    table = table[table["summed"] == table["workers"]]
    table = table.assign(
        setting=table["workers"].astype(str), share=table["theory"] / table["value"]
    )
    dense, codes = (table[table["what"] == what] for what in ("density", "codes"))
    dense = dense.assign(row=dense["kind"] + ", " + dense["factor"].astype(int).astype(str) + "x")
    most = dense.loc[dense.groupby(["row", "seed"])["workers"].idxmax()].assign(setting=MOST)
    widths = codes["bits"].astype(int).astype(str) + "-bit codes"
    return join(
        longer(pd.concat([dense, most]), OF_SUPPORTS),
        longer(most.assign(row=INDEPENDENT_OF + most["row"].map(ROWS)), {"theory": (DENSITY, "")}),
        longer(codes.assign(row=widths), {"value": (BITS, "bits")}),
    )


AXES = {"x": "workers N", "log": "x"}
share = partial(percent, decimals=2)
page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Density of the sum": Rows(
            ROWS,
            (
                Column("workers N", WORKERS, first, MOST),
                Column(DENSITY, DENSITY, share, MOST),
                Column("independent supports", INDEPENDENT, share, MOST),
                Column("independent / measured", SHARE, 3, MOST),
                Column("bytes: ring of sums", RING, times, MOST),
                Column("bytes: allgather", GATHER, times, MOST),
            ),
            "supports, factor",
        ),
        "Bits of a sum of codes: real gradients": Rows(
            CODES, [Column(f"N = {n}", BITS, 2, str(n)) for n in (2, 4, 8, 16)], "code"
        ),
    },
    claims=tuple(_claims()),
    figures={
        "density": drawing(
            "Density of sums of sparse gradients",
            lambda shown: [
                by_number(
                    shown,
                    DENSITY,
                    {f"{kind}, {f}x": KINDS[kind] for kind in KINDS},
                    f"{f}x",
                    **AXES,
                )
                for f in FACTORS
            ],
            BARS,
        )
    },
    said=lambda shown: {
        "steps": facts.distinct(
            run.summary.get("steps") for run in shown.runs if run.setting("model")
        )
    },
    alike=(),
)
