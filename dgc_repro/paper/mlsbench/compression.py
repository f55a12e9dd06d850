"""MLS-Bench: accuracy of the task's baselines, with the bytes that their training sends.

Rows add what the leaderboard lacks: dense training, and top-k without error feedback. ``reduced`` is a small
ResNet on a part of the data (quick, small).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgc_repro.paper.artifact import Artifact
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Quantity, amount, seeds, times
from dgc_repro.paper.mlsbench import BASELINES, BEST, DATA, MODELS, PRINTED, QSGD, SEEDS, row_id
from dgc_repro.paper.page import Page, Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
METHODS = {
    "dense": "dense",
    "topk": "top-k 1 %, error feedback",
    "topk_dropped": "top-k 1 %, error dropped",
    "qsgd": "QSGD, 64 levels",
    "signsgd": "scaled signs, error feedback",
}
LESS = "payload: times less than dense float32"
POINT = 1.0
"""Percentage points. Ours."""
MIXED = (f"{QSGD}.resnet20", f"{QSGD}.vgg11")
"""Claims on means of new numbers and of an older board's (payloads.md)."""


def _best(run: Run) -> float:
    """The best of the evaluations that the task makes: after epochs 1, 10, 20, ... and the last one."""
    epochs = run.epochs["epoch"]
    asked = (epochs % 10 == 0) | (epochs == 1) | (epochs == epochs.max())
    return float(run.epochs.loc[asked, "test/accuracy_percent"].max())


def _less(run: Run) -> float:
    values = float(run.summary["parameters"]) * run.last("step")
    return 4 * values / run.last("comm/payload_bytes")


def _claims(model: str, name: str) -> list[Claim]:
    """What is judged of a model: two claims of the task, and the printed accuracies if it has some."""
    own = {method: row_id(model, method) for method in METHODS}
    dropped = Check(BEST, own["topk"], own["topk_dropped"], above=POINT)
    kept = Check(BEST, own["dense"], own["topk"], -POINT, POINT)
    found = [
        WORDS.claim(what, check, id=f"{what}.{model}", ours=True, model=name, point=POINT)
        for what, check in (("feedback", dropped), ("kept", kept))
    ]
    for method in BASELINES if own["topk"] in SEEDS else ():
        printed, id_ = PRINTED[own[method], BEST], f"{method}.{model}"
        of = ", ".join(f"{one:.2f}" for one in SEEDS[own[method]])
        why = (
            f"The mean {printed:.2f} % is of {of} %: some are an older board's (mlsbench/payloads)."
            if id_ in MIXED
            else ""
        )
        found.append(
            WORDS.claim(
                "printed", near(Check(BEST, own[method]), printed, POINT), id=id_, ours=True,
                row=f"{name}, {METHODS[method]}", printed=printed, point=POINT, cannot_follow=why,
            )
        )  # fmt: skip
    return found


def _artifact(names: Mapping[str, str]) -> Artifact:
    return Artifact(
        __file__,
        rows={
            row_id(m, k): f"{name}, {label}"
            for m, name in names.items()
            for k, label in METHODS.items()
        },
        quantities={BEST: Quantity("%", _best), LESS: Quantity("x", _less)},
        tables={
            "Accuracy and bytes": (
                *(seeds(BEST), Column(f"{BEST} %", BEST, 2)),
                *(Column("payload", "payload", amount), Column("times less", LESS, times)),
            )
        },
        printed={key: value for key, value in PRINTED.items() if key[0].partition(".")[0] in names},
        claims=[one for model, name in names.items() for one in _claims(model, name)],
        data=DATA | {"reduced": "CIFAR-10"},
        alike=("scale.name", "launch", "optimizer", "schedule", "train.epochs", "train.batch_size"),
    )


FULL, REDUCED = _artifact(MODELS), _artifact({"reduced": "reduced ResNet"})
CLAIMS = (*FULL.claims, *REDUCED.claims)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the task's models, or of the reduced one."""
    return (FULL if any(run.model in MODELS for run in runs) else REDUCED)(runs, scale)
