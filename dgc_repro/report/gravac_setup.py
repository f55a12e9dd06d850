"""What GraVAC's runs were trained with, beside the paper's; and which are one training. Blocks of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report.gravac_course import Course
from dgc_repro.report.gravac_pool import method_of, num_steps, quality
from dgc_repro.report.records import in_order
from dgc_repro.report.study import Block, distinct
from dgc_repro.report.table import short


def setup_block(courses: Sequence[Course]) -> Block:
    """Two rows a model."""
    rows: list[tuple[str, ...]] = []
    for one in courses:
        rows += [_paper_row(one.model), _our_row(one)]
    return Block(
        "Set-up: the paper's and ours",
        f"The learning rate of ResNet101 falls to a tenth at iterations {printed.MILESTONES[0]:,} and "
        f"{printed.MILESTONES[1]:,} in the paper, the others' is fixed; how many steps it takes is not said. "
        "Ours: the runs of this page.",
        (
            *("model", "", "workers", "batch", "momentum", "decay", "rate", "steps"),
            *("parameters", "data", "schedule"),
        ),
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5, 6, 7, 8),
    )


def twins_block(courses: Sequence[Course]) -> Block:
    """Rows that trained alike, bit for bit: what is said of one is said of all."""
    rows = [
        (
            LABELS[one.model],
            printed.METHOD_LABELS[other],
            printed.METHOD_LABELS[group[0]],
            str(seeds),
        )
        for one in courses
        for group, seeds in twins(one)
        for other in group[1:]
    ]
    return Block(
        "Rows that are one training",
        "Loss and quality of all epochs are equal bit for bit in every seed that the rows share. With dense: "
        "nothing was compressed. With Top-k: at this size the method's own search falls back to an exact "
        "selection (DGC's sample is the whole gradient). What is said of one of them is said of the other.",
        ("model", "row", "is also", "n"),
        tuple(rows) or (("-", "none", "-", "-"),),
    )


def twins(one: Course) -> list[tuple[list[str], int]]:
    """Groups of methods whose losses and qualities are equal in all seeds they share, and how many seeds."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for run in one.runs:
        course = (*run.epochs["test/loss"].astype(float), *quality(run, one.metric))
        found.setdefault(method_of(run), {})[run.seed] = course
    groups: list[list[str]] = []
    for method in (m for m in printed.METHOD_LABELS if m in found):
        for group in groups:
            if _alike(found[group[0]], found[method]):
                group.append(method)
                break
        else:
            groups.append([method])
    return [
        (group, len(set.intersection(*(set(found[method]) for method in group))))
        for group in groups
        if len(group) > 1
    ]


def _alike(one: Mapping[int, object], other: Mapping[int, object]) -> bool:
    shared = one.keys() & other.keys()
    return bool(shared) and all(one[seed] == other[seed] for seed in shared)


def _paper_row(model: str) -> tuple[str, ...]:
    label = next(row.label for row in printed.SETUP.rows if row.id == model)
    numbers = [
        printed.SETUP.printed(model, key) for key in ("batch", "momentum", "weight_decay", "lr")
    ]
    schedule = f"steps at {printed.MILESTONES}" if model == "resnet101" else "constant"
    return (
        *(LABELS[model], "paper", str(printed.WORKERS), *(f"{number:g}" for number in numbers)),
        *("-", f"{printed.PARAMETERS[model]:,}", label.partition(", ")[2], schedule),
    )


def _our_row(one: Course) -> tuple[str, ...]:
    def used(key: str) -> str:
        values = [run.setting(key) for run in one.runs]
        return distinct([short(in_order(value)) for value in values if value is not None])

    return (
        *(LABELS[one.model], "ours"),
        *(used(key) for key in ("launch.workers", "train.batch_size", "optimizer.momentum")),
        *(used(key) for key in ("optimizer.weight_decay", "optimizer.lr")),
        distinct([f"{num_steps(run):,}" for run in one.runs]),
        distinct(
            [f"{n:,}" for run in one.runs if (n := run.summary.get("parameters")) is not None]
        ),
        distinct([run.environment.get("data") for run in one.runs]),
        used("schedule"),
    )
