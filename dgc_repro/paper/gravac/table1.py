"""GraVAC's Table I: the models as built here, beside the printed sizes."""

from __future__ import annotations

from functools import partial

from dgc_repro.paper.artifact import Artifact, built
from dgc_repro.paper.claims import Check, near, printed_table
from dgc_repro.paper.frame import Column, Quantity
from dgc_repro.paper.gravac import MODELS
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

TABLE_1 = printed_table(
    "Table I",
    "layers, size [MB]",
    """
    resnet101  101  170
    vgg16       16  528
    lstm         2  252
    """,
)
HALF = 0.5  # sizes are printed as whole numbers


def _counted(run: Run, column: str) -> float:
    return float(run.lines[column].iloc[0])


page = Artifact(
    __file__,
    rows={**MODELS, "vgg16_plain": "VGG16 without batch norm", "lstm_tied": "LSTM, tied weights"},
    quantities={
        "layers": Quantity("", partial(_counted, column="layers")),
        "size": Quantity("MiB", partial(_counted, column="mib")),
        "parameters": Quantity("", partial(_counted, column="parameters")),
    },
    tables={
        "Models": (
            *(Column("layers", "layers", 0), Column("MiB", "size", 1)),
            Column("parameters", "parameters", lambda v: f"{v[0]:,.0f}" if v else "not built"),
        )
    },
    printed=TABLE_1,
    claims=[
        Template.read(__file__).claim(
            "size", near(Check("layers", row), layers, HALF), near(Check("size", row), size, HALF),
            id=row, by_construction=True, model=MODELS[row], layers=layers, size=size,
        )
        for row, (layers, size) in TABLE_1.rows.items()
    ],
    head=built,
    alike=("scale.name",),
    first="model",
)  # fmt: skip
