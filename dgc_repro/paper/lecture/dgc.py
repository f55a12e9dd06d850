"""The lecture's table on Deep Gradient Compression (DGC): its megabytes and ratios, counted on built models.

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Its row on the Penn Treebank (PTB) is trained in ptb.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import Artifact, Shown, drawing, looks_of
from dgc_repro.paper.claims import Check, near, printed_table, within
from dgc_repro.paper.frame import Column, join, longer, of, study_of, times
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
RESNET50, DEEPSPEECH, LSTM = "resnet50", "deepspeech", "lstm_ptb"
SIZE, PAYLOAD, RATIO = "gradient", "payload", "ratio"
MEGABYTES = printed_table("text on DGC", "gradient [MB], payload [MB], ratio [x]", """
    resnet50     97  0.35  277
    deepspeech  488  0.74  608
    lstm_ptb      -     -  462
""")  # fmt: skip
KNOWN = MEGABYTES.numbers
LABELS = {
    RESNET50: "ResNet-50",
    DEEPSPEECH: "5-layer GRU of DeepSpeech's size",
    LSTM: "2-layer LSTM, 1500 wide, tied",
}
SHORT = ("ResNet-50", "DeepSpeech", "LSTM on PTB")
"""In the figure."""
RANGE = (270, 600)
"""The text: DGC compresses 270 to 600 times."""
CODINGS = {"int32": "4-byte places", "auto": "2-byte distances"}
PLAIN, FEWEST = CODINGS
FACTOR = 1.1
"""Payloads and ratios agree within a tenth. Ours."""
HALF = 0.5
"""Sizes before are printed as whole numbers."""


def _within(quantity: str, row: str, coding: str) -> Check:
    return within(Check(quantity, row, setting=coding), MEGABYTES(row, quantity), FACTOR)


def _falls(row: str, coding: str) -> tuple[Check, ...]:
    """The gradient to the printed digit, and the payload."""
    return near(Check(SIZE, row), MEGABYTES(row, SIZE), HALF), _within(PAYLOAD, row, coding)


_range = [Check(RATIO, row, above=RANGE[0], below=RANGE[1], setting=PLAIN) for row in LABELS]
_speech, _resnet = (note.arithmetic for note in WORDS.notes[1:])
CLAIMS = tuple(
    WORDS.claim(name, *checks, ours=name != "range", cannot_follow=why, by_construction=True)
    for name, checks, why in (
        ("range", _range, ""),
        ("size.resnet50", (*_falls(RESNET50, PLAIN), _within(RATIO, RESNET50, PLAIN)), _resnet),
        ("size.deepspeech", _falls(DEEPSPEECH, FEWEST), ""),
        ("ratio.deepspeech", [_within(RATIO, DEEPSPEECH, PLAIN)], _speech),
    )
)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are models, settings codings of the places."""
    table = study_of(runs).assign(row=lambda lines: lines["model"])
    return join(
        longer(table[table["coding"] == PLAIN], {"gradient_mib": (SIZE, "MiB")}),
        longer(
            table.assign(setting=table["coding"]),
            {"payload_mib": (PAYLOAD, "MiB"), "ratio": (RATIO, "x")},
        ),
    )


def _bars(shown: Shown) -> list[panels.Panel]:
    """Ratios, counted and printed."""
    heights = {
        label: [of(shown.frame, RATIO, row, c)[0] for row in LABELS] for c, label in CODINGS.items()
    }
    heights["printed"] = [KNOWN[row, RATIO] for row in LABELS]
    bars = panels.bars(SHORT, heights, looks_of({name: name for name in heights}), "%.0f")
    return [panels.panel("", bars, y="bytes of the gradient over the payload")]


page = Artifact(
    __file__,
    rows=LABELS,
    numbers=numbers,
    tables={
        "Payload, counted": (
            Column("gradient MiB", SIZE, 2, printed=KNOWN),
            Column(f"MiB, {CODINGS[PLAIN]}", PAYLOAD, 3, PLAIN, KNOWN),
            Column(f"MiB, {CODINGS[FEWEST]}", PAYLOAD, 3, FEWEST),
            Column(f"ratio, {CODINGS[PLAIN]}", RATIO, times, PLAIN, KNOWN),
            Column(f"ratio, {CODINGS[FEWEST]}", RATIO, times, FEWEST),
        ),
        "Table on DGC as printed": (),
    },
    claims=CLAIMS,
    figures={
        "dgc": drawing(
            "DGC: payload ratio at a density of 0.1 %",
            _bars,
            "Nothing was trained: payloads are counted.",
        )
    },
    notes=WORDS.notes,
    alike=(),
)
