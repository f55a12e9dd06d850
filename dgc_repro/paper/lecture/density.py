"""Allreduce of compressed gradients: density of sums of sparse gradients, bits of sums of codes.

Random supports beside 1 - (1 - d)^N; supports of real gradients, without and with residuals, beside
independent supports of the same sizes in the same tensors; sums of codes beside the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, join, longer, percent, pivot, times
from dgc_repro.paper.lecture import exact, study_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
RANDOM, REAL, FED = "random", "gradient", "error-fed"
INDEPENDENT = "independent"
LOOKS = {
    RANDOM: Look("independent random supports", plot.BLACK, "o"),
    REAL: Look("real gradients", plot.BLUE, "s"),
    FED: Look("real gradients with residuals", plot.ORANGE, "^", "--"),
}
LABELS = {kind: look.label for kind, look in LOOKS.items()} | {
    f"{kind}, {INDEPENDENT}": f"independent supports of the sizes of {look.label}"
    for kind, look in LOOKS.items()
}
COLOURS: dict[object, str] = {10: plot.BLACK, 100: plot.BLUE, 1000: plot.ORANGE}
LARGEST, DISTANCE = "density of the sum of all workers", "largest relative distance from theory"
DENSITY, THEORY = "density", "density of independent supports"
SHARE = "independent / measured density"
RING, GATHER = "bytes of a ring of sums", "bytes of an allgather"
BITS, BOUND = "bits more than one code", "bits more, worst case"
LEFT = "bits left to the worst case"
OF_SUPPORTS = {
    "value": (DENSITY, ""),
    "theory": (THEORY, ""),
    "share": (SHARE, ""),
    "ring_over_dense": (RING, "of a dense ring's"),
    "gather_over_dense": (GATHER, "of a dense ring's"),
}
OF_CODES = {"value": (BITS, "bits"), "theory": (BOUND, "bits")}
DENSE_FACTORS = (10, 100)
"""Factors at which the sum of the largest simulated ring has to be dense. Ours."""
FACTORS, CODE_BITS = (10, 100, 1000), (4, 8)
HALF = 0.5
"""Ours: the density at which entries of 8 bytes (value and place) are as large as all values of 4 bytes."""
TOLERANCE = 0.02
REAL_FACTOR = 10
"""At which the sum of 16 gradients could be dense: 16 d is above a half. Ours."""
ROUNDING = 1e-5
"""Bits: of the numbers in a record. A sum may reach its bound."""


def _dense(kind: str, factor: int) -> Check:
    return Check(LARGEST, kind, above=HALF, setting=f"{factor}x")


_arithmetic: dict[str, Any] = {"ours": True, "by_construction": True}
CLAIMS = (
    *(
        WORDS.claim("dense", _dense(kind, REAL_FACTOR), id=f"dense.{kind}", ours=True, what=LABELS[kind])
        for kind in (REAL, FED)
    ),
    WORDS.claim("dense.random", *(_dense(RANDOM, f) for f in DENSE_FACTORS), **_arithmetic),
    WORDS.claim("theory", Check(DISTANCE, RANDOM, above=-math.inf, below=TOLERANCE), **_arithmetic),
    *(
        WORDS.claim(
            "overlap",
            Check(LARGEST, f"{kind}, {INDEPENDENT}", kind, 1.0, setting=f"{factor}x", ratio=True),
            id=f"{kind}.{factor}", what=LABELS[kind], factor=factor,
        )
        for kind in (REAL, FED)
        for factor in FACTORS
    ),
    *(
        WORDS.claim(
            "codes", Check(LEFT, REAL, above=-ROUNDING, setting=f"{bits}-bit codes"), id=f"codes.{bits}",
            by_construction=True, bits=bits,
        )
        for bits in CODE_BITS
    ),
)  # fmt: skip


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The frame: by kind, what the tables have and what the claims compare. Sums of fewer than all N workers
    have their number as ``step``."""
    table = table.assign(row=table["kind"], share=table["theory"] / table["value"])
    workers = ", N = " + table["workers"].astype(str)
    dense, codes = table["what"] == "density", table["what"] == "codes"
    fewer = table["summed"].where(table["summed"] < table["workers"])
    supports = table.assign(setting=table["factor"].astype(str) + "x" + workers, step=fewer)
    coded = table.assign(setting=table["bits"].astype(str) + "-bit codes" + workers)
    return join(
        longer(supports[dense], OF_SUPPORTS), longer(coded[codes], OF_CODES), _compared(table)
    )


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    """What the claims compare: of each kind and factor the sum of the most workers."""
    sums = table[(table["what"] == "density") & (table["summed"] == table["workers"])]
    keys = ["kind", "factor", "seed"]
    most = sums.loc[sums.groupby(keys)["workers"].idxmax()]
    most = most.assign(setting=most["factor"].astype(str) + "x")
    independent = most.assign(row=most["kind"] + f", {INDEPENDENT}", value=most["theory"])
    both = pd.concat([most, independent]).sort_values(keys, kind="stable")
    drawn = sums[sums["kind"] == RANDOM]
    distance = (drawn["value"] / drawn["theory"] - 1).abs().groupby(drawn["seed"]).max()
    codes = table[table["what"] == "codes"]
    gaps = (codes["theory"] - codes["value"]).groupby([codes["bits"], codes["seed"]]).min()
    left = gaps.reset_index(name="left")
    named = left["bits"].astype(str) + "-bit codes"
    return join(
        longer(both, {"value": (LARGEST, "")}),
        longer(distance.reset_index(name="far").assign(row=RANDOM), {"far": (DISTANCE, "")}),
        longer(left.assign(row=REAL, setting=named), {"left": (LEFT, "bits")}),
    )


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    table = study_of(runs, ("model", "dataset", "train.batch_size", "launch.workers"))
    frame = numbers(table)
    drawn = [run for run in runs if not run.setting("model")]
    real = [run for run in runs if run.setting("model")]

    def said(key: str, of: Sequence[Run] = real) -> str:
        return facts.distinct(run.setting(key, run.summary.get(key)) for run in of)

    head = [
        ("random supports", f"{said('study.values', drawn)} values"),
        (
            "real gradients",
            f"{said('parameters')} values in {said('tensors')} tensors, batch {said('train.batch_size')} a "
            f"worker, after {said('steps')} steps of training",
        ),
    ]
    caption = f"{facts.caption(real or runs, scale)}; mean over seeds, bars: standard deviation"
    shown = _panels(*(table[table["what"] == what] for what in ("density", "codes")))
    return made(
        __file__, scale, runs, frame, _sections(frame, table), CLAIMS, labels=LABELS,
        facts=facts.facts(real or runs, scale, head),
        figures={"density": lambda: plot.figure("Sums of compressed gradients", caption, shown)},
    )  # fmt: skip


def _sections(frame: pd.DataFrame, table: pd.DataFrame) -> list[Section]:
    """A line for each number of workers: the frame with row and setting exchanged."""
    turned = frame.assign(row=frame["setting"], setting=frame["row"])
    supports, codes = table[table["what"] == "density"], table[table["what"] == "codes"]
    sums = {f"{f}x, N = {n}": f"{f}x, {n}" for f, n in _places(supports, "factor")}
    coded = {f"{b}-bit codes, N = {n}": f"{b}-bit, {n}" for b, n in _places(codes, "bits")}
    density = partial(percent, decimals=2)
    columns = (
        Column("1 - (1 - d)^N", THEORY, lambda values: density(values[:1]), RANDOM),
        Column("random", DENSITY, density, RANDOM),
        Column("real", DENSITY, density, REAL),
        Column("with residuals", DENSITY, density, FED),
        Column("independent / real", SHARE, 3, REAL),
        Column("independent / with residuals", SHARE, 3, FED),
        Column("bytes: ring of random sums", RING, times, RANDOM),
        Column("bytes: ring of real sums", RING, times, REAL),
        Column("bytes: allgather", GATHER, lambda values: times(values[:1]), RANDOM),
    )
    bits = (Column("bits more", BITS, 2, REAL), Column("worst case", BOUND, exact, REAL))
    return [
        Section("Density of the sum", pivot(turned, sums, columns, first="factor, N")),
        Section(
            "Bits of a sum of codes: real gradients", pivot(turned, coded, bits, first="code, N")
        ),
    ]


def _places(table: pd.DataFrame, key: str) -> list[tuple[int, int]]:
    return sorted({(int(a), int(n)) for a, n in zip(table[key], table["workers"], strict=True)})


def _panels(supports: pd.DataFrame, codes: pd.DataFrame) -> list[panels.Panel]:
    """Density of the partial sums by workers summed; density of sums of real gradients over that of
    independent supports; bits more of a sum of codes."""

    def half(axes: Any) -> None:
        axes.text(1, HALF * 1.06, "places cost more\nthan they save", fontsize=7)

    return [
        panels.panel(
            "density of partial sums", *_sums(supports), half, y="density of the partial sum", log="y",
            x="workers summed m (log)", xticks="binary",
            at_y=[(HALF, {"color": "#999999", "linestyle": ":"})],
        ),
        panels.panel(
            "overlap of real supports", panels.rule("y", 1.0), *_overlap(supports), xticks="binary",
            x="workers N (log)", y="density over that of independent supports",
        ),
        panels.panel(
            "bits of a sum of codes", *_bits(codes), x="workers N (log)", y="bits more than one code",
            xticks="binary",
        ),
    ]  # fmt: skip


def _sums(supports: pd.DataFrame) -> Iterator[panels.Draw]:
    for (kind, factor), group in supports.groupby(["kind", "factor"]):
        ring = group[group["workers"] == group["workers"].max()]
        if kind == RANDOM:
            how: dict[str, Any] = {
                "color": COLOURS.get(factor),
                "label": f"{factor}x, 1 - (1 - d)^m",
            }
            yield panels.means(ring, "summed", "theory", **how)
        yield panels.means(ring, "summed", "value", **_line(kind, factor))
    for kind in LOOKS:
        yield panels.lines([([], [])], LABELS[kind], **_line(kind, 0))


def _overlap(supports: pd.DataFrame) -> Iterator[panels.Draw]:
    whole = supports[(supports["summed"] == supports["workers"]) & (supports["kind"] != RANDOM)]
    whole = whole.assign(share=whole["value"] / whole["theory"])
    for (kind, factor), group in whole.groupby(["kind", "factor"]):
        line = {"capsize": 2, **_line(kind, factor)}
        yield panels.means(group, "workers", "share", spread=True, **line)


def _bits(codes: pd.DataFrame) -> Iterator[panels.Draw]:
    styles = ((plot.GREEN, "s", "-"), (plot.PURPLE, "D", ":"))
    for place, (width, group) in enumerate(codes.groupby("bits")):
        look = Look(f"real gradients, {width}-bit codes", *styles[place % 2])
        yield panels.means(group, "workers", "value", **look.line)
    worst = np.log2(counts := sorted(codes["workers"].unique()))
    grey: dict[str, Any] = {"color": "#888888"}
    yield panels.lines([(counts, worst)], "worst case, log2 N bits", **grey)
    grey["linestyle"] = "-."
    yield panels.lines([(counts, worst / 2)], "random signs, log2 N / 2 bits", **grey)


def _line(kind: object, factor: object) -> dict[str, Any]:
    """A kind has a marker, a factor a colour."""
    look, colour = LOOKS[str(kind)], COLOURS.get(factor, "#666666")
    return {
        "color": colour, "marker": look.marker, "markersize": 5, "linewidth": 0.8,
        "linestyle": "none" if kind == RANDOM else "--",
        "markerfacecolor": "white" if kind == FED else colour,
    }  # fmt: skip
