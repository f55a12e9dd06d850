"""Tables of GraVAC's figures 7 to 10: steps by factor and branch, what is sent, dips, deciding later.

``rows`` are labels by row, of the rows that adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dgc_repro.paper.gravac_factors import AFTER_DECAY, SWEEP, VARIANTS, share_at
from dgc_repro.paper.gravac_figures import STEPS
from dgc_repro.paper.gravac_training import DENSE, GRAVAC, REDUCTIONS, row_id
from dgc_repro.report.gravac_course import Course
from dgc_repro.report.gravac_decisions import amount, cell, final, percent, shares, thinning, times
from dgc_repro.report.gravac_factor_numbers import BRANCHES, samples_label
from dgc_repro.report.gravac_pool import Numbers, metric_of
from dgc_repro.report.gravac_volume import AT_MANY, reduction_cells
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block


def factor_block(runs: Sequence[Run], found: Numbers, rows: Mapping[str, str]) -> Block:
    """Which share of the steps was sent at each factor."""
    return Block(
        "Iterations by factor",
        f"Shares of {thinning(runs)}. Norm: the gain of the authors' code (sums of L2 norms).",
        ("factor", *rows.values()),
        tuple(
            (label, *(percent(found, share_at(factor), name) for name in rows))
            for factor, label in _factors(runs).items()
        ),
    )


def throughput_block(runs: Sequence[Run], found: Numbers, rows: Mapping[str, str]) -> Block:
    """The mean throughput of compression at each factor."""
    return Block(
        "Compression throughput by factor",
        f"{samples_label(runs).capitalize()} times gain of what was sent, mean over the recorded steps at "
        "that factor. Modelled workers: those of the cluster whose step the network's model times.",
        ("factor", *rows.values()),
        tuple(
            (label, *(amount(found, f"throughput@{factor:g}x", name) for name in rows))
            for factor, label in _factors(runs).items()
        ),
    )


def _factors(runs: Sequence[Run]) -> dict[float, str]:
    """Every factor that was sent, with its label, ascending."""
    factors = sorted({factor for run in runs for factor in shares(run)})
    return {factor: "1x (dense)" if factor == 1 else f"{factor:g}x" for factor in factors}


def branch_block(found: Numbers, rows: Mapping[str, str]) -> Block:
    """Which of the three was sent, and how far the factors went."""
    return Block(
        "Branches",
        "Shares of the recorded steps that sent the candidate, theta_min or the dense gradient; the largest "
        "theta_min and candidate of the run.",
        ("row", *BRANCHES, "largest: theta_min", "largest: candidate"),
        tuple(
            (
                label,
                *(percent(found, f"branch@{branch}", name) for branch in BRANCHES),
                cell(found, "theta_min", name, 4),
                cell(found, "candidate", name, 4),
            )
            for name, label in rows.items()
        ),
    )


def volume_block(one: Course, found: Numbers, rows: Mapping[str, str]) -> Block:
    """What is sent against dense in three units, and what it costs in quality."""
    dense = row_id(one.model, DENSE)
    whole = cell(found, final(one.metric), dense, 4)
    lines: list[tuple[str, ...]] = [("dense", "-", "1x", "1x", "1x", "1x", whole)]
    for name, label in rows.items():
        method = name.partition(".")[2]
        printed = REDUCTIONS[one.model].get(method)
        lines.append(
            (
                label,
                "-" if printed is None else f"{printed:g}x",
                *reduction_cells(one, method, found),
                cell(found, final(one.metric), name, 4),
            )
        )
    return Block(
        "Communication volume: how many times less than dense",
        "Floats: values alone, as the paper counts. Payload: what a worker hands over, places included. "
        "Wire: what the collectives move a worker, here an allgather of what each has chosen (N - 1 "
        "payloads) in the place of an allreduce (2 (N - 1) / N of the gradient), of these workers and by "
        f"the same arithmetic of {AT_MANY}: below 1x more is sent than dense training sends. Last: "
        f"{one.metric.label} after the last epoch.",
        ("row", "floats: paper", "floats", "payload", "wire", f"wire: N = {AT_MANY}",
         "final"),
        tuple(lines),
    )  # fmt: skip


def variant_block(one: Course, found: Numbers) -> Block:
    """Variants of GraVAC's run at eps 0.7 beside it."""
    lines = []
    for method, label in {GRAVAC: "as the figure", **VARIANTS}.items():
        name = row_id(one.model, method)
        lines.append(
            (
                label,
                str(len(one.of(method))),
                percent(found, "same_branch", name),
                percent(found, "same_factor", name),
                cell(found, final(one.metric), name, 4),
                times(found, "floats_reduction", name),
            )
        )
    return Block(
        "Variants at eps 0.7",
        "Deciding a step later, from the gains of the step before, the plan of a step is known before "
        "backward (exchange.junction=per_bucket could then overlap communication with it). Same: recorded "
        "steps that took the same branch, or sent at the same factor, as the first row's run, paired by "
        "seed; each run goes its own course. Last: floats, times less than dense.",
        ("variant", "n", "same: branch", "same: factor", one.metric.label.replace(" ", ": ", 1), "floats"),
        tuple(lines),
    )  # fmt: skip


def sweep_block(one: Course, found: Numbers) -> Block:
    """GraVAC with the norm gain at six eps."""
    return Block(
        "Other eps, norm gain",
        f"{one.metric.label.capitalize()} after the last epoch, shares of the recorded steps, and floats, "
        "times less than dense.",
        ("eps", "n", "final", *BRANCHES, "largest: candidate", "floats"),
        tuple(
            (
                f"{eps:g}",
                str(len(one.of(method))),
                cell(found, final(one.metric), name, 4),
                *(percent(found, f"branch@{branch}", name) for branch in BRANCHES),
                cell(found, "candidate", name, 4),
                times(found, "floats_reduction", name),
            )
            for method, eps in SWEEP.items()
            for name in (row_id(one.model, method),)
        ),
    )


def decay_block(runs: Sequence[Run], found: Numbers, rows: Mapping[str, str]) -> Block:
    """Quality and gain before and after the learning rate first falls."""
    metric = metric_of(runs)
    return Block(
        "Where the learning rate first falls",
        f"{metric.label.capitalize()} at the last evaluation before, the lowest of those within "
        f"{AFTER_DECAY:,} of {STEPS:,} steps after, and the mean gain of what was sent as long before and "
        "after.",
        ("row", "before", "lowest after", "dip", "gain: before", "gain: after"),
        tuple(
            (
                label,
                cell(found, "before", name, 4),
                cell(found, "lowest_after", name, 4),
                cell(found, "dip", name),
                cell(found, "gain_before", name),
                cell(found, "gain_after", name),
            )
            for name, label in rows.items()
        ),
    )
