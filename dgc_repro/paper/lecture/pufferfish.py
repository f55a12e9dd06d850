"""Pufferfish against dense training and PowerSGD: parameters, bytes of a run, accuracy.

Wang, Agarwal, Papailiopoulos, "Pufferfish: communication-efficient models at no extra cost", MLSys 2021,
arXiv:2103.03936. The claims are those of its abstract. It prints no comparison at equal bytes.
"""

from __future__ import annotations

from dgc_repro.paper import facts
from dgc_repro.paper.artifact import ACCURACY, BANDS, Artifact, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, Relative, amount, count, seeds
from dgc_repro.paper.page import Template
from dgc_repro.paper.panels import panel

WORDS = Template.read(__file__)
TEST, PARAMETERS, PAYLOAD, SHARE = (
    "test accuracy",
    "parameters",
    "payload",
    "payload, of Pufferfish's",
)
TOLERANCE = 1.0
"""Percentage points that count as no loss of accuracy. Ours: the abstract names no margin."""
NEAR = 0.05
"""Payloads that differ by no more than this share count as equal. Ours."""
_equal_bytes = Check(PAYLOAD, "pufferfish", "powersgd", above=1 - NEAR, below=1 + NEAR, ratio=True)
_smaller = Check(PARAMETERS, "dense", "pufferfish", above=1.0, ratio=True)
page = Artifact(
    __file__,
    rows={"dense": "dense", "pufferfish": "Pufferfish", "powersgd": "PowerSGD"},
    quantities={
        TEST: ACCURACY,
        PARAMETERS: Quantity("", lambda run: float(run.summary["parameters"])),
        SHARE: Relative(PAYLOAD, to="pufferfish", unit="%"),
    },
    tables={
        "Parameters, bytes and accuracy": (
            *(seeds(TEST), Column(PARAMETERS, PARAMETERS, count), Column(PAYLOAD, PAYLOAD, amount)),
            *(Column("% of Pufferfish's", SHARE, 1), Column(f"{TEST} %", TEST, 2)),
        )
    },
    claims=(
        WORDS.claim("accuracy", Check(TEST, "pufferfish", "dense", above=-TOLERANCE), ours=True),
        WORDS.claim(
            "powersgd",
            Check(TEST, "pufferfish", "powersgd", above=-TOLERANCE),
            premises=(_equal_bytes,),
            ours=True,
        ),
        WORDS.claim("parameters", _smaller, by_construction=True),
    ),
    figures={
        "pufferfish": drawing(
            "Pufferfish, dense training and PowerSGD",
            lambda shown: [
                panel("", shown.curves("test/accuracy_percent", x), x=label, y="test accuracy (%)")
                for x, label in (("epoch", "epoch"), ("comm/payload_bytes", "payload sent (bytes)"))
            ],
            BANDS,
        )
    },
    # The model differs in ``model.low_rank``.
    alike=(*(key for key in facts.ALIKE if key != "model"), "model._target_", "model.width"),
)
