"""MLS-Bench: what "100x compression" is in bytes, counted on the task's three models (study/nominal.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper.artifact import Artifact, Shown, built
from dgc_repro.paper.claims import Check, near, within
from dgc_repro.paper.frame import Column, amount, join, longer, number, of, study_of, times
from dgc_repro.paper.mlsbench import BASELINES, MODELS, QSGD, SEEDS, SIGNS, TOPK, row_id
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
ELIAS = "qsgd_elias"
METHODS = {
    "dense": "dense",
    "topk_int32": "top-k 1 %, 4-byte places",
    TOPK: "top-k 1 %, shortest places",
    QSGD: "QSGD, 64 levels, 8 bits",
    ELIAS: "QSGD, 64 levels, Elias codes of Gaussian values",
    SIGNS: "scaled signs",
}
ROWS = {
    row_id(model, method): f"{name}, {label}"
    for model, name in MODELS.items()
    for method, label in METHODS.items()
}
BYTES, VALUES, RETURNED, PACKED, WIRE = (
    *("payload", "fewer values", "ratio of returned tensors", "ratio as packed"),
    "ratio on the wire",
)
WORKERS = (2, 8, 32)
FACTOR = 1.1
"""A ratio of 100 is met within a tenth. Ours."""
BITS, SIGNS_RATIO, ROUNDED = 4.6, 32, {4.6: 0.05, 32: 0.5}
"""Ratios that the baselines' comments print, and half of their last digit."""


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are models and methods, settings of `WIRE` numbers of workers."""
    table = study_of(runs)
    table = table.assign(row=table["of"] + "." + table["method"])
    same = ["of", "seed", "workers"]
    dense = table[same].merge(table[table["method"] == "dense"], "left", on=same)
    ratios = {VALUES: "values", RETURNED: "tensor_bytes", PACKED: "payload_bytes"}
    for name, column in {**ratios, WIRE: "wire_bytes"}.items():
        table[name] = dense[column].to_numpy() / table[column].to_numpy()
    once = table[table["workers"] == table["workers"].min()]
    return join(
        longer(once, {"payload_bytes": (BYTES, "bytes"), **{name: (name, "x") for name in ratios}}),
        longer(table.assign(setting=table["workers"].astype(str)), {WIRE: (WIRE, "x")}),
    )


def _said(shown: Shown) -> dict[str, object]:
    """The ratios of each method over the three models. Raises UserError where one is missing."""
    if missing := sorted(MODELS.keys() - {row.partition(".")[0] for row in shown.frame["row"]}):
        raise UserError(
            f"experiment.row: no run of {missing[0]}; give `python -m dgc_repro reproduce mlsbench/payloads`"
        )
    found: dict[str, object] = {}
    for method in METHODS:
        own = [x for model in MODELS for x in of(shown.frame, PACKED, row_id(model, method))]
        ends = (f"{end:.3g}" for end in (min(own), max(own)))
        found[method] = " to ".join(dict.fromkeys(ends))
    ratio, *_ = of(shown.frame, WIRE, row_id("vgg11", QSGD), str(WORKERS[-1]))
    return found | {"inverse": 1 / ratio}


def _accuracies(_: Shown) -> pd.DataFrame:
    """The leaderboard's accuracies: one line a baseline, one column a model."""
    table = {"baseline": [METHODS[method].partition(",")[0] for method in BASELINES]}
    for model, name in MODELS.items():
        found = [SEEDS[row_id(model, method)] for method in BASELINES]
        table[f"{name} %"] = [f"{number(own, 2)} (n = {len(own)})" for own in found]
    return pd.DataFrame(table)


def _all(method: str, printed: float, half: float) -> list[Check]:
    return [near(Check(PACKED, row_id(model, method)), printed, half) for model in MODELS]


def _within(quantity: str, method: str) -> list[Check]:
    return [within(Check(quantity, row_id(m, method)), 100, FACTOR) for m in MODELS]


page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Bytes of a step": (
            Column("payload", BYTES, amount),
            Column("values: times fewer", VALUES, times),
            Column("returned tensors: times fewer bytes", RETURNED, times),
            Column("payload: times fewer bytes", PACKED, times),
            *(Column(f"wire, {n} workers", WIRE, times, str(n)) for n in WORKERS),
        ),
        "Accuracy as printed": _accuracies,
    },
    claims=(
        WORDS.claim("values", *_within(VALUES, TOPK), ours=True, by_construction=True),
        *(
            WORDS.claim(
                "hundred", *_within(PACKED, ELIAS if method == QSGD else method), ours=True,
                id=f"hundred.{method}", method=METHODS[method].partition(",")[0],
                assumed="Gaussian values" if method == QSGD else "", counted=True,
            )
            for method in BASELINES
        ),
        WORDS.claim("levels", *_all(QSGD, BITS, ROUNDED[BITS]), counted=True),
        WORDS.claim("signs", *_all(SIGNS, SIGNS_RATIO, ROUNDED[SIGNS_RATIO]), by_construction=True),
    ),
    notes=WORDS.notes,
    head=built,
    said=_said,
    alike=("scale.name", "study"),
    first="model and method",
)  # fmt: skip
