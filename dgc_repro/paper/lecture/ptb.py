"""The lecture's table on Deep Gradient Compression (DGC): its row on the Penn Treebank (PTB).

The lecture takes the table from Lin, Han, Mao, Wang, Dally, "Deep Gradient Compression", ICLR 2018,
arXiv:1712.01887. Only this row can be trained with the models and data of this project; dgc.py counts the
payloads of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, near
from dgc_repro.paper.frame import SENT, Column, Quantity, amount, pivot, seeds, signed, times
from dgc_repro.paper.lecture.dgc import COUNTED, PTB, TABLE_DGC, printed_table
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

WORDS = Template.read(__file__)
DENSE, DGC = "dense", "dgc"
LOOKS = {DENSE: Look("baseline (dense)", plot.BLACK, "o"), DGC: Look("DGC", plot.ORANGE, "s")}
LABELS = {row: look.label for row, look in LOOKS.items()}

PERPLEXITY, OVER = "test perplexity", "perplexity over baseline"
VALIDATION, NEXT_WORD = "validation perplexity", "next word predicted"
LAST_EPOCH = {name: f"{name} of the last epoch" for name in SENT}
PAYLOAD_STEP = "payload a step of the last epoch"
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
PRINTED = {DENSE: TABLE_DGC(PTB, "baseline"), DGC: TABLE_DGC(PTB, "DGC")}
RATIO = TABLE_DGC(PTB, "ratio")

_equal = Check(
    PERPLEXITY, DGC, DENSE, above=1 - PERPLEXITY_TOLERANCE, below=1 + PERPLEXITY_TOLERANCE, ratio=True,
    printed=PRINTED[DGC] / PRINTED[DENSE],
)  # fmt: skip
_smaller = near(Check(LAST_EPOCH["payload"], DENSE, DGC, ratio=True), RATIO, FACTOR)
CLAIMS = (
    WORDS.claim("1", _equal, ours=True, **PRINTED),
    WORDS.claim("2", _smaller, ours=True, ratio=RATIO),
)


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
    frame = frames.join(found, over, *ratios)
    printed = {(row, PERPLEXITY): value for row, value in PRINTED.items()}
    printed_over = {(r, OVER): round(100 * (v / PRINTED[DENSE] - 1), 2) for r, v in PRINTED.items()}
    heads = dict(zip(SENT, ("floats", "payload", "wire"), strict=True))
    results = (
        seeds(PERPLEXITY),
        Column("test perplexity", PERPLEXITY, 2, printed=printed),
        Column("% over baseline", OVER, lambda v: signed(v, 2), printed=printed_over),
        Column(VALIDATION, VALIDATION, 2),
        Column("next word %", NEXT_WORD, 1),
    )
    sent = (
        *(Column(f"after warm-up: {h}", ratio_of(LAST_EPOCH[q]), times) for q, h in heads.items()),
        *(Column(f"whole run: {h}", ratio_of(q), times) for q, h in heads.items()),
        Column("payload a step", PAYLOAD_STEP, amount),
    )
    curves = panels.curves(own, "test/perplexity", LOOKS, x="epoch")
    title = "mean over seeds, band: one standard deviation"
    shown = [panels.panel(title, curves, x="epoch", y="test perplexity", log="y")]
    return made(
        __file__, scale, own, frame,
        [
            Section("The PTB row, measured", pivot(frame, LABELS, results)),
            Section("Compression ratio", pivot(frame, LABELS, sent)),
            printed_table("Table on DGC as printed"),
        ],
        CLAIMS, labels=LABELS, said={"printed": f"{RATIO:.0f}x"}, printed=printed, notes=(COUNTED,),
        figures={
            "perplexity": lambda: plot.figure(
                "DGC on a text: test perplexity by epoch", facts.caption(own, scale), shown, size=(6.4, 3.8)
            )
        },
    )  # fmt: skip


def ratio_of(name: str) -> str:
    """The quantity of a compression ratio: the baseline's number over the row's."""
    return f"ratio of {name}"
