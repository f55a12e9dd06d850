"""The lecture's table on Deep Gradient Compression (DGC): its megabytes and ratios, counted on built models.

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Its row on the Penn Treebank (PTB) is trained in ptb.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import OURS, Check, Claim, Note, Printed, near
from dgc_repro.paper.frame import Column, longer, of, pivot, plain, times
from dgc_repro.paper.lecture import study_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

TABLE_DGC = Printed(
    "table on DGC",
    {"baseline": "", "DGC": "", "ratio": "x"},
    {
        "ResNet-50, ImageNet: top-1 %": (75.96, 76.15, 277),
        "ResNet-50, ImageNet: top-5 %": (92.91, 92.97, 277),
        "5-layer GRU, LibriSpeech: WER %, first": (9.45, 9.06, 608),
        "5-layer GRU, LibriSpeech: WER %, second": (27.07, 27.04, 608),
        "2-layer LSTM, PTB: perplexity": (72.30, 72.24, 462),
    },
)
PTB = "2-layer LSTM, PTB: perplexity"
RESNET50, DEEPSPEECH, LSTM = "resnet50", "deepspeech", "lstm_ptb"
MEGABYTES = Printed(
    "text on DGC",
    {"before": "MB", "after": "MB", "ratio": "x"},
    {RESNET50: (97, 0.35, 277), DEEPSPEECH: (488, 0.74, 608)},
)
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


COUNTED = Note(
    "The lecture does not say what the compression ratio counts.",
    f"One value in {1 / DENSITY:.0f} is {1 / DENSITY:.0f}x counted in floats and "
    f"{4 / (DENSITY * 8):.0f}x in bytes with an index of 4 bytes each; printed {_printed_ratio:.0f}x is "
    f"{_bytes_a_value(_printed_ratio)}.",
)
_contradiction = (
    f"{MEGABYTES(DEEPSPEECH, 'before'):g} MB / {MEGABYTES(DEEPSPEECH, 'after'):g} MB = {_speech:.0f}x, "
    f"printed {MEGABYTES(DEEPSPEECH, 'ratio'):g}x."
)
_other_density = (
    f"{MEGABYTES(RESNET50, 'before'):g} MB / {MEGABYTES(RESNET50, 'after'):g} MB = {_resnet:.0f}x is "
    f"{_bytes_a_value(_resnet)} at 0.1 %: more than a value and its place take."
)
NOTES = (
    COUNTED,
    Note(
        "DeepSpeech's megabytes do not give its ratio.",
        f"{_contradiction} {_speech:.0f}x lies above the text's upper end of "
        f"{RANGE[1]}x too. At 0.1 % it is {_bytes_a_value(_speech)}: a float32 and a 2-byte distance.",
    ),
    Note(
        "ResNet-50's megabytes give its ratio, but not at a density of 0.1 %.",
        f"{MEGABYTES(RESNET50, 'before'):g} MB / {MEGABYTES(RESNET50, 'after'):g} MB = {_resnet:.0f}x. At "
        f"0.1 % it is {_bytes_a_value(_resnet)}; with 8 bytes for each value the density is "
        f"{100 * 4 / (8 * _resnet):.2f} %.",
    ),
)  # fmt: skip

_reading = (
    "Counted on the built model at a density of 0.1 %, each tensor by itself, with 4-byte places. The "
    "accuracy of these models is not tested."
)


def _ratio(row: str, printed: float) -> Check:
    return Check(
        RATIO, row, above=printed / FACTOR, below=printed * FACTOR, setting=PLAIN, printed=printed
    )


def _falls(row: str, coding: str) -> tuple[Check, ...]:
    before, after = MEGABYTES(row, "before"), MEGABYTES(row, "after")
    return (
        near(Check(SIZE, row), before, HALF),
        Check(PAYLOAD, row, above=after / FACTOR, below=after * FACTOR, setting=coding, printed=after),
    )  # fmt: skip


CLAIMS = (
    Claim(
        "range", f"DGC compresses gradients {RANGE[0]} to {RANGE[1]} times.", "text on DGC",
        tuple(Check(RATIO, row, above=RANGE[0], below=RANGE[1], setting=PLAIN) for row in LABELS),
        _reading, by_construction=True,
    ),
    Claim(
        "size.resnet50", "ResNet-50's gradient falls from 97 MB to 0.35 MB.", "text on DGC",
        _falls(RESNET50, PLAIN), f"{_reading} The payload within a tenth.", margin=OURS,
        cannot_follow=_other_density, by_construction=True,
    ),
    Claim(
        "ratio.resnet50", f"ResNet-50's ratio is {MEGABYTES(RESNET50, 'ratio'):g}x.", "table on DGC",
        (_ratio(RESNET50, MEGABYTES(RESNET50, "ratio")),), f"{_reading} Within a tenth.",
        margin=OURS, cannot_follow=_other_density, by_construction=True,
    ),
    Claim(
        "size.deepspeech", "DeepSpeech's gradient falls from 488 MB to 0.74 MB.", "text on DGC",
        _falls(DEEPSPEECH, FEWEST),
        "Counted on the built model at a density of 0.1 %, each tensor by itself, with 2-byte distances: the "
        "payload within a tenth. The GRU's width was chosen to match the 488 MB.",
        margin=OURS, by_construction=True,
    ),
    Claim(
        "ratio.deepspeech", f"DeepSpeech's ratio is {MEGABYTES(DEEPSPEECH, 'ratio'):g}x.", "table on DGC",
        (_ratio(DEEPSPEECH, MEGABYTES(DEEPSPEECH, "ratio")),), f"{_reading} Within a tenth.",
        margin=OURS, cannot_follow=_contradiction, by_construction=True,
    ),
)  # fmt: skip


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
    return made(
        __file__,
        scale,
        runs,
        frame,
        [
            Section("Payload, counted", _counted(frame, printed)),
            printed_table("Table on DGC as printed"),
        ],
        CLAIMS,
        labels=LABELS,
        said={
            "inputs": study["gru_inputs"],
            "hidden": study["gru_hidden"],
            "gru": frames.number(of(frame, SIZE, DEEPSPEECH)[:1], 1),
        },
        printed=printed,
        notes=NOTES,
        figures={"dgc": partial(_figure, frame, scale)},
    )


def _counted(frame: pd.DataFrame, printed: frames.Known) -> pd.DataFrame:
    columns = [
        Column("tensors", TENSORS, 0),
        Column("parameters", PARAMETERS, lambda v: f"{v[0]:,.0f}" if v else "-"),
        Column("gradient MiB", SIZE, 2, printed=printed),
        Column(f"MiB, {CODINGS[PLAIN]}", PAYLOAD, 3, PLAIN, printed),
        Column(f"MiB, {CODINGS[FEWEST]}", PAYLOAD, 3, FEWEST),
        Column(f"ratio, {CODINGS[PLAIN]}", RATIO, times, PLAIN, printed, "x"),
        Column(f"ratio, {CODINGS[FEWEST]}", RATIO, times, FEWEST),
    ]
    return pivot(frame, LABELS, columns, first="model")


def _figure(frame: pd.DataFrame, scale: str) -> Figure:
    def draw(axes: Axes) -> None:
        colours = {PLAIN: plot.BLUE, FEWEST: plot.GREEN}
        looks = {c: Look(f"counted, {CODINGS[c]}", colours[c]) for c in CODINGS}
        looks["printed"] = Look("printed", plot.ORANGE)
        heights = {c: [of(frame, RATIO, row, c)[0] for row in LABELS] for c in CODINGS}
        given = [MEGABYTES(RESNET50, "ratio"), MEGABYTES(DEEPSPEECH, "ratio"), _printed_ratio]
        names = ["ResNet-50", "GRU", "LSTM"]
        plot.bars(axes, names, {**heights, "printed": given}, looks, ylabel="compression ratio")
        for bars in axes.containers:
            axes.bar_label(bars, fmt="%.0f", fontsize=8)  # type: ignore[arg-type]

    caption = f"{facts.scale_text(scale)}, models at the paper's sizes, nothing trained"
    title = "DGC: payload ratio at a density of 0.1 %"
    return plot.figure(title, caption, [("gradient / payload", draw)], size=(5.6, 3.4), legend=3)
