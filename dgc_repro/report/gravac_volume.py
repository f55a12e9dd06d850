"""GraVAC against dense training: what is sent, in three units, and where final loss and volume hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.claim import Claim
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report.gravac_course import Course, wire_reduction
from dgc_repro.report.gravac_pool import UNITS, Numbers, reductions, written
from dgc_repro.report.study import Block, distinct
from dgc_repro.report.verdict import Verdict

AT_MANY = printed.WORKERS


def of_row(found: Numbers, quantity: str, model: str, method: str) -> Mapping[int, float]:
    """A quantity of a row, by seed."""
    return found.get(quantity, {}).get(printed.row_id(model, method), {})


def reduction_cells(one: Course, method: str, found: Numbers) -> tuple[str, ...]:
    """How many times less is sent than by dense training: floats, payload, wire, wire of many workers."""
    less = reductions(found, printed.row_id(one.model, printed.DENSE))
    units = [list(of_row(less, f"{unit}_reduction", one.model, method).values()) for unit in UNITS]
    dense = {run.seed: run for run in one.of(printed.DENSE)}
    many = [
        value
        for run in one.of(method)
        if run.seed in dense
        and math.isfinite(value := wire_reduction(run, dense[run.seed], AT_MANY))
    ]
    return tuple(written(values, "x") for values in (*units, many))


def volume_block(
    courses: Sequence[Course], methods: Callable[[Course], Sequence[str]], found: Numbers
) -> Block:
    """Of each row that was run: floats, payload and wire bytes of dense over its own."""
    rows = [
        (
            LABELS[one.model],
            printed.METHOD_LABELS[method],
            *reduction_cells(one, method, found),
        )
        for one in courses
        for method in methods(one)
        if method != printed.DENSE and one.of(method)
    ]
    own = distinct([run.setting("launch.workers") for one in courses for run in one.runs])
    return Block(
        "What is sent: times less than dense training",
        "Over the whole run, paired by seed. Three units, three stories. Floats, the paper's: values only. "
        "Payload: places, scales and padding too; 10x in floats is 5x with places of 32 bits, 7.6x with a "
        f"bit a value. Wire: what the collective moves of it among these {own} workers. Of N, a dense "
        "allreduce moves 2 (N - 1) / N times its bytes, and a gathered payload is handed on N - 1 times: on "
        "the wire it is 2 / N of its reduction in payload, and from N = 2 x that reduction on more than "
        "dense sends. What is averaged keeps its reduction. The last column is that arithmetic for the "
        f"paper's {AT_MANY} workers; below 1x more is sent than without compression.",
        ("model", "method", "floats", "payload", "wire", f"wire, N = {AT_MANY}"),
        tuple(rows),
    )


def held_block(
    courses: Sequence[Course], found: Numbers, held: Sequence[tuple[Claim, Verdict]]
) -> Block:
    """GraVAC against dense at both eps and with both gains (n: norm): quality, volume, verdicts."""
    words = {claim.id: verdict.word for claim, verdict in held}
    rows = []
    for one in courses:
        ends = printed.TEST_LOSS if one.metric.sign > 0 else printed.PERPLEXITY
        for method, label in printed.GRAVAC_ROWS.items():
            losses = [
                _loss(list(of_row(found, ends, one.model, name).values()))
                for name in (method, printed.DENSE)
            ]
            floats, payload, wire, many = reduction_cells(one, method, found)
            rows.append(
                (
                    LABELS[one.model],
                    label.removeprefix("eps ").replace(", norm gain", "n"),
                    *losses,
                    words[f"{one.model}.{method}.loss"],
                    f"{printed.REDUCTIONS[one.model][method]:g}x",
                    floats,
                    words[f"{one.model}.{method}.volume"],
                    payload,
                    wire,
                    many,
                )
            )
    return Block(
        "GraVAC against dense (n: norm gain): where it holds and where not",
        held_text(held),
        (
            *("model", "eps", "loss (words: perplexity): GraVAC", "dense", "loss: verdict"),
            *(
                "floats: paper",
                "ours",
                "floats: verdict",
                "payload",
                "wire",
                f"wire, N = {AT_MANY}",
            ),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5, 6, 7),
    )


def _loss(values: Sequence[float]) -> str:
    return written(values, decimals=3 if max(values, default=0.0) < 10 else 2)


def held_text(held: Sequence[tuple[Claim, Verdict]]) -> str:
    """One sentence a word: which claims hold, which do not, which nobody can say yet."""
    saying = {
        "agrees": "Holds",
        "differs": "Does not hold",
        "indicative": "Fewer than three seeds, not judged",
        "not tested": "Not tested, nearly nothing was compressed",
        "not run": "Not run",
    }
    parts = []
    for word, said in saying.items():
        names = [claim.id for claim, verdict in held if verdict.word == word]
        if names:
            parts.append(f"{said}: {', '.join(names)}.")
    return " ".join(parts)
