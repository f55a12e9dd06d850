"""The lecture's table on Deep Gradient Compression (DGC): its row on the Penn Treebank, and its megabytes.

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Only the row on the Penn Treebank (PTB) can be trained with the models and data of this
project. Of the other models the payload is computed from their numbers of parameters; nothing is trained.
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
from dgc_repro.paper.frame import (
    SENT,
    Column,
    Known,
    Quantity,
    amount,
    pivot,
    plain,
    seeds,
    signed,
    times,
)
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

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
RANGE = (270, 600)
"""The text: DGC compresses 270 to 600 times."""
DENSE, DGC = "dense", "dgc"
LOOKS = {DENSE: Look("baseline (dense)", plot.BLACK, "o"), DGC: Look("DGC", plot.ORANGE, "s")}
MIB = 2**20
NUM_PARAMETERS = {
    RESNET50: 25_557_032,  # torchvision's resnet50, 1000 classes: 97.5 MiB
    DEEPSPEECH: MEGABYTES(DEEPSPEECH, "before") * MIB // 4,  # the lecture gives the size alone
    LSTM: 51_034_000,  # 1500 wide, tied, 10,000 words
}
LABELS = {row: look.label for row, look in LOOKS.items()} | {
    RESNET50: "ResNet-50 (computed)",
    DEEPSPEECH: "DeepSpeech (computed)",
    LSTM: "2-layer LSTM, 1500 wide, tied (computed)",
}

PERPLEXITY, OVER = "test perplexity", "perplexity over baseline"
VALIDATION, NEXT_WORD = "validation perplexity", "next word predicted"
LAST_EPOCH = {name: f"{name} of the last epoch" for name in SENT}
PAYLOAD_STEP = "payload a step of the last epoch"
SIZE, INT32 = "gradient size", "payload at 0.1 %, 4-byte indices"
DELTA16 = "payload at 0.1 %, 2-byte distances"
COMPUTED_RATIO = {INT32: "ratio, 4-byte indices", DELTA16: "ratio, 2-byte distances"}
DENSITY, ESCAPE = 0.001, 65_535
PERPLEXITY_TOLERANCE = 0.02
FACTOR = 2.0
"""Sizes and ratios agree within a factor of two. Ours: the lecture does not say what it counts."""


def in_last_epoch(metric: str, run: Run) -> float:
    """What the last epoch added to a number that counts up over the run."""
    before = float(run.epochs[metric].iloc[-2]) if len(run.epochs) > 1 else 0.0
    return run.last(metric) - before


def _a_step(run: Run) -> float:
    return in_last_epoch("comm/payload_bytes", run) / in_last_epoch("step", run)


METRICS = {"floats sent": "comm/floats", "payload": "comm/payload_bytes", "wire": "comm/wire_bytes"}
QUANTITIES = {
    PERPLEXITY: Quantity("", lambda run: run.last("test/perplexity")),
    VALIDATION: Quantity("", lambda run: run.last("validation/perplexity")),
    NEXT_WORD: Quantity("%", lambda run: run.last("test/accuracy_percent")),
    **SENT,
    **{
        LAST_EPOCH[name]: Quantity(SENT[name].unit, partial(in_last_epoch, metric))
        for name, metric in METRICS.items()
    },
    PAYLOAD_STEP: Quantity("bytes", _a_step),
}


def payload_bytes(num_values: float, coding: str) -> int:
    """Bytes of one sparse payload of a thousandth of the values (payload/sparse.py, the gradient as
    one tensor): header, places, float32 values. `DELTA16`: 16 bits for each distance, and an escape for
    every 65,535 values passed over."""
    n = int(num_values)
    k = round(DENSITY * n)
    places = 4 * k if coding == INT32 else 4 * ((k + (n - k) // ESCAPE + 1) // 2)
    return 8 + places + 4 * k


def computed() -> pd.DataFrame:
    """Size of the gradient and of its payloads at a density of 0.1 %, from the number of parameters."""
    found: list[tuple[str, str, str, float]] = []
    for row, n in NUM_PARAMETERS.items():
        sizes = {SIZE: 4 * int(n), **{c: payload_bytes(n, c) for c in COMPUTED_RATIO}}
        found += [(row, name, "MiB", size / MIB) for name, size in sizes.items()]
        found += [(row, COMPUTED_RATIO[c], "x", sizes[SIZE] / sizes[c]) for c in COMPUTED_RATIO]
    keys = ("row", "quantity", "unit", "value")
    return frames.lines({"seed": 0, **dict(zip(keys, line, strict=True))} for line in found)


_printed_ratio, _baseline = TABLE_DGC(PTB, "ratio"), TABLE_DGC(PTB, "baseline")
_speech, _resnet = (
    MEGABYTES(row, "before") / MEGABYTES(row, "after") for row in (DEEPSPEECH, RESNET50)
)


def _bytes_a_value(ratio: float) -> str:
    return f"{4 / (DENSITY * ratio):.2f} bytes for each value sent"


NOTES = (
    Note(
        "The lecture does not say what the compression ratio counts.",
        f"One value in {1 / DENSITY:.0f} is {1 / DENSITY:.0f}x counted in floats and "
        f"{4 / (DENSITY * 8):.0f}x in bytes with an index of 4 bytes each; printed {_printed_ratio:.0f}x is "
        f"{_bytes_a_value(_printed_ratio)}.",
    ),
    Note(
        "DeepSpeech's megabytes do not give its ratio.",
        f"{MEGABYTES(DEEPSPEECH, 'before'):g} MB / {MEGABYTES(DEEPSPEECH, 'after'):g} MB = {_speech:.0f}x, "
        f"printed {MEGABYTES(DEEPSPEECH, 'ratio'):g}x. {_speech:.0f}x lies above the text's upper end of "
        f"{RANGE[1]}x too. At 0.1 % it is {_bytes_a_value(_speech)}: a float32 and a 2-byte distance.",
    ),
    Note(
        "ResNet-50's megabytes give its ratio, but not at a density of 0.1 %.",
        f"{MEGABYTES(RESNET50, 'before'):g} MB / {MEGABYTES(RESNET50, 'after'):g} MB = {_resnet:.0f}x. At "
        f"0.1 % it is {_bytes_a_value(_resnet)}; with 8 bytes for each value the density is "
        f"{100 * 4 / (8 * _resnet):.2f} %.",
    ),
)  # fmt: skip

_formula = (
    "Computed at a density of 0.1 % from the number of parameters: 4 bytes of value and 4 of index for each "
    "value sent. Arithmetic, no finding; the accuracy of these models is not tested."
)


_reading_mb = f"{_formula} MB are read as MiB; within a factor of two."


def _falls(row: str) -> Check:
    after = MEGABYTES(row, "after")
    return Check(INT32, row, above=after / FACTOR, below=after * FACTOR, printed=after)


CLAIMS = (
    Claim(
        "1",
        "DGC trains the 2-layer LSTM to the baseline's perplexity "
        f"({TABLE_DGC(PTB, 'DGC')} and {TABLE_DGC(PTB, 'baseline'):.2f}).",
        "table on DGC, row PTB",
        (
            Check(
                PERPLEXITY, DGC, DENSE, above=1 - PERPLEXITY_TOLERANCE, below=1 + PERPLEXITY_TOLERANCE,
                ratio=True, printed=TABLE_DGC(PTB, "DGC") / TABLE_DGC(PTB, "baseline"),
            ),
        ),
        "Test perplexity after the last epoch, exp(mean nats a word); within 2 % either way.",
        margin=OURS,
    ),
    Claim(
        "2", f"DGC makes the gradient {_printed_ratio:.0f} times smaller.", "table on DGC, row PTB",
        (near(Check(LAST_EPOCH["payload"], DENSE, DGC, ratio=True), _printed_ratio, FACTOR),),
        "Payload bytes of the last epoch, after warm-up; within a factor of two. The table has the ratio in "
        "floats, payload bytes and wire bytes.", margin=OURS,
    ),
    Claim(
        "range", f"DGC compresses gradients {RANGE[0]} to {RANGE[1]} times.", "text on DGC",
        tuple(
            Check(COMPUTED_RATIO[INT32], row, above=RANGE[0], below=RANGE[1])
            for row in NUM_PARAMETERS
        ),
        _formula, by_construction=True,
    ),
    Claim(
        "size.resnet50", "ResNet-50's gradient falls from 97 MB to 0.35 MB.", "text on DGC",
        (Check(SIZE, RESNET50, above=96, below=98, printed=97), _falls(RESNET50)), _reading_mb,
        margin=OURS, by_construction=True,
    ),
    Claim(
        "size.deepspeech", "DeepSpeech's gradient falls from 488 MB to 0.74 MB.", "text on DGC",
        (_falls(DEEPSPEECH),), f"{_reading_mb} The number of parameters is that of the printed 488 MB.",
        margin=OURS, by_construction=True,
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not one experiment."""
    # DGC clips each worker's gradient itself, the baseline's optimizer clips the averaged one.
    require_alike(runs, [key for key in facts.ALIKE if key != "optimizer"])
    own = of_rows(runs, LOOKS)
    found = frames.measure(own, QUANTITIES)
    ratios = [
        frames.relative(found, name, DENSE, inverse=True, name=ratio_of(name))
        for name in (*SENT, *LAST_EPOCH.values())
    ]
    over = frames.relative(found, PERPLEXITY, DENSE, name=OVER, unit="%")
    over["value"] -= 100
    frame = frames.join(found, over, *ratios, computed())
    sizes = frames.printed_numbers(MEGABYTES, {"before": SIZE, "after": INT32})
    printed = {(DENSE, PERPLEXITY): _baseline, (DGC, PERPLEXITY): TABLE_DGC(PTB, "DGC")} | sizes
    return made(
        __file__,
        scale,
        own,
        frame,
        _sections(frame, printed),
        CLAIMS,
        labels=LABELS,
        said={"printed": f"{_printed_ratio:.0f}x"},
        printed=printed,
        notes=NOTES,
        figures={"perplexity": partial(_figure, own, scale)},
    )


def ratio_of(name: str) -> str:
    """The quantity of a compression ratio: the baseline's number over the row's."""
    return f"ratio of {name}"


def _sections(frame: pd.DataFrame, printed: Known) -> list[Section]:
    rows = {row: look.label for row, look in LOOKS.items()}
    models = {row: LABELS[row] for row in NUM_PARAMETERS}
    over = {(row, OVER): 100 * (printed[row, PERPLEXITY] / _baseline - 1) for row in rows}
    over = {place: round(value, 2) for place, value in over.items()}
    ratio = COMPUTED_RATIO[INT32]
    ratios = {(row, ratio): MEGABYTES(row, "ratio") for row in MEGABYTES.rows}
    ratios[LSTM, ratio] = _printed_ratio
    heads = dict(zip(SENT, ("floats", "payload", "wire"), strict=True))
    results = (
        seeds(PERPLEXITY),
        Column("test perplexity", PERPLEXITY, 2, printed=printed),
        Column("% over baseline", OVER, lambda v: signed(v, 2), printed=over),
        Column(VALIDATION, VALIDATION, 2),
        Column("next word %", NEXT_WORD, 1),
    )
    sent = (
        *(Column(f"after warm-up: {h}", ratio_of(LAST_EPOCH[q]), times) for q, h in heads.items()),
        *(Column(f"whole run: {h}", ratio_of(q), times) for q, h in heads.items()),
        Column("payload a step", PAYLOAD_STEP, amount),
    )
    sizes = (
        Column("gradient MiB", SIZE, 2, printed=printed),
        Column("MiB, 4-byte indices", INT32, 3, printed=printed),
        Column("MiB, 2-byte distances", DELTA16, 3),
        Column(ratio, ratio, times, printed=ratios),
        Column(COMPUTED_RATIO[DELTA16], COMPUTED_RATIO[DELTA16], times),
    )
    units = TABLE_DGC.columns
    cells = [[row, *map(plain, values, units.values())] for row, values in TABLE_DGC.rows.items()]
    return [
        Section("The PTB row, measured", pivot(frame, rows, results)),
        Section("Compression ratio", pivot(frame, rows, sent)),
        Section("Payload at a density of 0.1 %, computed", pivot(frame, models, sizes, "model")),
        Section("Table on DGC as printed", pd.DataFrame(cells, columns=["task", *units])),
    ]


def _figure(runs: Sequence[Run], scale: str) -> Figure:
    def draw(axes: Axes) -> None:
        label = "test perplexity"
        plot.curves(axes, runs, "test/perplexity", LOOKS, x="epoch", ylabel=label, log=True)

    panels = [("mean over seeds, band: one standard deviation", draw)]
    title, said = "DGC on a text: test perplexity by epoch", facts.caption(runs, scale)
    return plot.figure(title, said, panels, size=(6.4, 3.8))
