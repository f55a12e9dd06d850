"""What GraVAC's runs were trained with, the paper's beside ours: a block of its tables."""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report.gravac_course import Course
from dgc_repro.report.gravac_pool import num_steps
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
        return distinct(
            [short(value) for run in one.runs if (value := run.setting(key)) is not None]
        )

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
