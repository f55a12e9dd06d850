"""The lecture's table on Deep Gradient Compression (DGC): its megabytes and ratios, counted on built models.

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Its row on the Penn Treebank (PTB) is trained in ptb.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Printed, near
from dgc_repro.paper.claims import printed_table as read_table
from dgc_repro.paper.frame import Column, longer, of, pivot, plain, times
from dgc_repro.paper.lecture import study_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
PTB = "2-layer LSTM, PTB: perplexity"
TABLE_DGC = Printed(
    "table on DGC",
    {"baseline": "", "DGC": "", "ratio": "x"},
    {
        "ResNet-50, ImageNet: top-1 %": (75.96, 76.15, 277),
        "ResNet-50, ImageNet: top-5 %": (92.91, 92.97, 277),
        "5-layer GRU, LibriSpeech: WER %, first": (9.45, 9.06, 608),
        "5-layer GRU, LibriSpeech: WER %, second": (27.07, 27.04, 608),
        PTB: (72.30, 72.24, 462),
    },
)
RESNET50, DEEPSPEECH, LSTM = "resnet50", "deepspeech", "lstm_ptb"
MEGABYTES = read_table("text on DGC", "before [MB], after [MB], ratio [x]", """
    resnet50     97  0.35  277
    deepspeech  488  0.74  608
""")  # fmt: skip
LABELS = {
    RESNET50: "ResNet-50",
    DEEPSPEECH: "5-layer GRU of DeepSpeech's size",
    LSTM: "2-layer LSTM, 1500 wide, tied",
}
RANGE = (270, 600)
"""The text: DGC compresses 270 to 600 times."""
DENSITY = 0.001
PLAIN, FEWEST = "int32", "auto"
CODINGS = {PLAIN: "4-byte places", FEWEST: "2-byte distances"}
SIZE, PAYLOAD, RATIO = "gradient size", "payload at 0.1 %", "ratio at 0.1 %"
TENSORS, PARAMETERS = "tensors", "parameters"
FACTOR = 1.1
"""Payloads and ratios agree within a tenth. Ours."""
HALF = 0.5  # sizes before are printed as whole numbers

_printed_ratio = TABLE_DGC(PTB, "ratio")
_speech, _resnet = (
    MEGABYTES(row, "before") / MEGABYTES(row, "after") for row in (DEEPSPEECH, RESNET50)
)


def _bytes_a_value(ratio: float) -> str:
    return f"{4 / (DENSITY * ratio):.2f} bytes for each value sent"


_numbers = {
    "floats": f"{1 / DENSITY:.0f}x",
    "indexed": f"{4 / (DENSITY * 8):.0f}x",
    "ptb": f"{_printed_ratio:.0f}x is {_bytes_a_value(_printed_ratio)}",
    "speech_mb": f"{MEGABYTES(DEEPSPEECH, 'before'):g} MB / {MEGABYTES(DEEPSPEECH, 'after'):g} MB",
    "speech": f"{_speech:.0f}x",
    "speech_printed": f"{MEGABYTES(DEEPSPEECH, 'ratio'):g}x",
    "speech_bytes": _bytes_a_value(_speech),
    "end": RANGE[1],
    "resnet_mb": f"{MEGABYTES(RESNET50, 'before'):g} MB / {MEGABYTES(RESNET50, 'after'):g} MB",
    "resnet": f"{_resnet:.0f}x",
    "resnet_bytes": _bytes_a_value(_resnet),
    "resnet_density": f"{100 * 4 / (8 * _resnet):.2f} %",
}
NOTES = WORDS.noted(**_numbers)
COUNTED = NOTES[0]
_contradiction = "{speech_mb} = {speech}, printed {speech_printed}.".format_map(_numbers)
_other_density = (
    "{resnet_mb} = {resnet} is {resnet_bytes} at 0.1 %: more than a value and its place take."
).format_map(_numbers)


def _ratio(row: str) -> Check:
    printed = MEGABYTES(row, "ratio")
    return Check(
        RATIO, row, above=printed / FACTOR, below=printed * FACTOR, setting=PLAIN, printed=printed
    )


def _falls(row: str, coding: str) -> tuple[Check, ...]:
    before, after = MEGABYTES(row, "before"), MEGABYTES(row, "after")
    low, high = after / FACTOR, after * FACTOR
    return (
        near(Check(SIZE, row), before, HALF),
        Check(PAYLOAD, row, above=low, below=high, setting=coding, printed=after),
    )


_within = [Check(RATIO, row, above=RANGE[0], below=RANGE[1], setting=PLAIN) for row in LABELS]
CLAIMS = tuple(
    WORDS.claim(name, *checks, ours=name != "range", cannot_follow=why, by_construction=True)
    for name, checks, why in (
        ("range", _within, ""),
        ("size.resnet50", _falls(RESNET50, PLAIN), _other_density),
        ("ratio.resnet50", [_ratio(RESNET50)], _other_density),
        ("size.deepspeech", _falls(DEEPSPEECH, FEWEST), ""),
        ("ratio.deepspeech", [_ratio(DEEPSPEECH)], _contradiction),
    )
)


def printed_table(title: str) -> Section:
    """The lecture's table, as printed."""
    units = TABLE_DGC.columns
    cells = [[row, *map(plain, values, units.values())] for row, values in TABLE_DGC.rows.items()]
    return Section(title, pd.DataFrame(cells, columns=["task", *units]))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished run. Raises UserError if there are several that are not alike."""
    table = study_of(runs).assign(row=lambda lines: lines["model"])
    models = table[table["coding"] == PLAIN]
    counted = {
        "gradient_mib": (SIZE, "MiB"),
        "tensors": (TENSORS, ""),
        "parameters": (PARAMETERS, ""),
    }
    coded = {"payload_mib": (PAYLOAD, "MiB"), "ratio": (RATIO, "x")}
    frame = frames.join(
        longer(models, counted), longer(table.assign(setting=table["coding"]), coded)
    )
    study = runs[0].config["study"]
    printed = frames.printed_numbers(MEGABYTES, {"before": SIZE, "after": PAYLOAD, "ratio": RATIO})
    printed[LSTM, RATIO] = _printed_ratio
    columns = [
        Column("tensors", TENSORS, 0),
        Column("parameters", PARAMETERS, lambda v: f"{v[0]:,.0f}" if v else "-"),
        Column("gradient MiB", SIZE, 2, printed=printed),
        Column(f"MiB, {CODINGS[PLAIN]}", PAYLOAD, 3, PLAIN, printed),
        Column(f"MiB, {CODINGS[FEWEST]}", PAYLOAD, 3, FEWEST),
        Column(f"ratio, {CODINGS[PLAIN]}", RATIO, times, PLAIN, printed, "x"),
        Column(f"ratio, {CODINGS[FEWEST]}", RATIO, times, FEWEST),
    ]
    looks = {
        PLAIN: Look(f"counted, {CODINGS[PLAIN]}", plot.BLUE),
        FEWEST: Look(f"counted, {CODINGS[FEWEST]}", plot.GREEN),
        "printed": Look("printed", plot.ORANGE),
    }
    heights = {c: [of(frame, RATIO, row, c)[0] for row in LABELS] for c in CODINGS}
    heights["printed"] = [printed[row, RATIO] for row in LABELS]
    bars = panels.bars(["ResNet-50", "GRU", "LSTM"], heights, looks, numbers="%.0f")
    shown = [panels.panel("gradient / payload", bars, y="compression ratio")]
    caption = f"{facts.scale_text(scale)}, models at the paper's sizes, nothing trained"
    title = "DGC: payload ratio at a density of 0.1 %"
    return made(
        __file__, scale, runs, frame,
        [
            Section("Payload, counted", pivot(frame, LABELS, columns, first="model")),
            printed_table("Table on DGC as printed"),
        ],
        CLAIMS, labels=LABELS, printed=printed, notes=NOTES,
        said={
            "inputs": study["gru_inputs"],
            "hidden": study["gru_hidden"],
            "gru": frames.number(of(frame, SIZE, DEEPSPEECH)[:1], 1),
        },
        figures={"dgc": lambda: plot.figure(title, caption, shown, size=(5.6, 3.4), legend=3)},
    )  # fmt: skip
