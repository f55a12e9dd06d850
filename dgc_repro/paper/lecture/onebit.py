"""1-bit SGD: training with and without the accumulated quantization error, beside dense training.

Paper of the method: Seide, Fu, Droppo, Li, Yu, "1-bit stochastic gradient descent and its application to
data-parallel distributed training of speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from dgc_repro.paper.artifact import ACCURACY, BANDS, LESS, Artifact, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, seeds, times
from dgc_repro.paper.page import Template
from dgc_repro.paper.panels import panel

WORDS = Template.read(__file__)
MARGIN_POINTS = 2.0
"""Points of accuracy below which a row counts as like dense. Ours."""
TEST, LOSS = "test accuracy", "training loss"
_like_dense = Check(TEST, "fed", "dense", above=-MARGIN_POINTS, below=MARGIN_POINTS)
_below_dense = Check(TEST, "dense", "plain", above=MARGIN_POINTS)
page = Artifact(
    __file__,
    rows={
        "dense": "dense",
        "fed": "1 bit, error accumulated",
        "plain": "1 bit, error dropped",
    },
    quantities={TEST: ACCURACY, LOSS: Quantity("nats", lambda run: run.last("train/loss"))},
    tables={
        "Accuracy and bytes": (
            *(seeds(TEST), Column("test accuracy %", TEST, 2), Column(LOSS, LOSS, 3)),
            Column("payload: times less", LESS, times),
        )
    },
    claims=(
        WORDS.claim("accumulated", _like_dense, ours=True, margin=MARGIN_POINTS),
        WORDS.claim("dropped", _below_dense, ours=True, margin=MARGIN_POINTS),
        WORDS.claim("loss", Check(LOSS, "plain", "fed")),
    ),
    figures={
        "onebit": drawing(
            "1-bit SGD with and without accumulated error",
            lambda shown: [
                panel(
                    LOSS, shown.curves("train/loss"), x="step", y="training loss (nats)", log="y"
                ),
                panel(TEST, shown.curves("test/accuracy_percent"), x="step", y="test accuracy (%)"),
            ],
            BANDS,
            columns=2,
        )
    },
)
