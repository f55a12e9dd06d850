"""Table I: the paper's numbers beside ours, row by row, with what the reader must know of them.

``build`` makes plain data; ``report/render.py`` writes it as markdown, CSV, JSON and on a terminal.
Time and data are compared as shares of the uncompressed row, because minutes and terabytes of
other hardware and another number of steps are not ours to match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgc_repro.paper import dynamic
from dgc_repro.paper.claim import Claim, PublishedRow
from dgc_repro.report.network import counted
from dgc_repro.report.quantities import QUANTITIES, payload_bytes, train_minutes
from dgc_repro.report.records import FREE_KEYS, Run, require_alike
from dgc_repro.report.verdict import PAPER_SCALE, Verdict, verdict

BASELINE = "none"
ALIKE = (
    "scale",
    "launch.kind",
    "launch.workers",
    "dataset",
    "model",
    "optimizer",
    "schedule",
    "train.epochs",
    "train.batch_size",
)
"""What all runs of one table must share."""


@dataclass(frozen=True)
class Measured:
    """Mean and sample standard deviation over ``n`` seeds; ``sd`` is None for one seed."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Cell:
    """One comparison: what the paper prints and what was measured, either may be missing."""

    paper: float | None
    ours: Measured | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, None unless both are there."""
        if self.paper is None or self.ours is None:
            return None
        return self.ours.mean - self.paper


@dataclass(frozen=True)
class Row:
    """One method. ``time_share`` and ``data_share`` are percent of the uncompressed row."""

    published: PublishedRow
    seeds: tuple[int, ...]
    epochs: Cell
    train_accuracy: Cell
    test_accuracy: Cell
    minutes: Cell
    time_share: Cell
    data_share: Cell
    data_paper_tb: float | None
    payload_bytes: Measured | None
    wire_bytes: Measured | None
    floats: Measured | None


@dataclass(frozen=True)
class Table:
    """Everything that is printed: ``header`` lines, rows, judged claims, choices, policy traces."""

    scale: str
    header: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    verdicts: tuple[tuple[Claim, Verdict], ...]
    choices: tuple[tuple[str, str, str, str], ...]
    traces: tuple[str, ...]

    @property
    def scale_label(self) -> str:
        """What stands beside every paper number."""
        return "paper scale" if self.scale == PAPER_SCALE else f"reduced scale: {self.scale}"


def spread(values: Sequence[float]) -> Measured | None:
    """Mean and sample standard deviation over seeds, None for no values."""
    if not values:
        return None
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Measured(float(np.mean(values)), sd, len(values))


def shares(runs: Sequence[Run], row: str, quantity: str) -> list[float]:
    """A row's quantity as percent of the uncompressed run's of the same seed."""
    of = QUANTITIES[quantity].of
    dense = {run.seed: of(run) for run in runs if run.row == BASELINE}
    return [
        100 * of(run) / dense[run.seed] for run in runs if run.row == row and dense.get(run.seed)
    ]


def _row(published: PublishedRow, runs: Sequence[Run]) -> Row:
    own = [run for run in runs if run.row == published.id]

    def printed(column: str) -> float | None:
        return dynamic.TABLE_1.value(published.id, column) if published.cells else None

    def printed_share(column: str) -> float | None:
        value = printed(column)
        return None if value is None else 100 * value / dynamic.TABLE_1.printed(BASELINE, column)

    def measured(quantity: str) -> Measured | None:
        return spread([QUANTITIES[quantity].of(run) for run in own])

    return Row(
        published=published,
        seeds=tuple(run.seed for run in own),
        epochs=Cell(printed("epochs"), spread([float(len(run.epochs)) for run in own])),
        train_accuracy=Cell(printed("train_accuracy"), measured("train_accuracy")),
        test_accuracy=Cell(printed("test_accuracy"), measured("test_accuracy")),
        minutes=Cell(printed("time"), spread([train_minutes(run) for run in own])),
        time_share=Cell(printed_share("time"), spread(shares(runs, published.id, "train_minutes"))),
        data_share=Cell(printed_share("data"), spread(shares(runs, published.id, "payload_bytes"))),
        data_paper_tb=printed("data"),
        payload_bytes=spread([payload_bytes(run) for run in own]),
        wire_bytes=measured("wire_bytes"),
        floats=measured("floats"),
    )


def short(value: Any) -> str:
    """A config value in one line: a group by its class (``_target_``) or name and its settings.

    The folder that holds the data is the user's own and says nothing about the result.
    """
    if isinstance(value, dict):
        settings = {k: v for k, v in value.items() if k not in ("_target_", "name", *FREE_KEYS)}
        name = str(value.get("_target_", value.get("name", ""))).rpartition(".")[2]
        inside = ", ".join(f"{k}={short(v)}" for k, v in settings.items())
        return f"{name}({inside})" if name and inside else name or inside
    if isinstance(value, list):
        return "[" + ", ".join(short(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return "null" if value is None else str(value)


def _distinct(values: Sequence[Any]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "-"


def header(runs: Sequence[Run], scale: str) -> tuple[tuple[str, str], ...]:
    """Scale, hardware, world, data, recipe, n, code: every distinct value of the runs."""
    environments = [run.environment for run in runs]
    # A run that was stopped and continued has an environment for each stretch.
    stretches = [stretch for e in environments for stretch in (*e.get("before", ()), e)]
    continued = sum(bool(e.get("before")) for e in environments)
    commits = [
        str(e.get("commit", "unknown"))[:12] + (" + uncommitted changes" if e.get("dirty") else "")
        for e in stretches
    ]
    torch = _distinct([e.get("torch") for e in environments])
    worlds = [
        f"{run.setting('launch.workers')} {run.setting('launch.kind')} workers, "
        f"{run.environment.get('backend')}, "
        f"{run.environment.get('threads_per_worker')} threads each"
        for run in runs
    ]
    datasets = [short(run.setting("dataset")) for run in runs]
    counts = {run.row: sum(r.row == run.row for r in runs) for run in runs}
    return (
        ("scale", scale if scale == PAPER_SCALE else f"{scale} (reduced: not the paper's setting)"),
        ("hardware", _distinct([e.get("hardware") for e in stretches])),
        ("world", _distinct(worlds)),
        *_network(runs),
        ("data", _distinct([e.get("data") for e in environments]) + f" ({_distinct(datasets)})"),
        ("model", _distinct([short(run.setting("model")) for run in runs])),
        (
            "training",
            f"{_distinct([run.setting('train.epochs') for run in runs])} epochs, batch "
            f"{_distinct([run.setting('train.batch_size') for run in runs])} a worker",
        ),
        (
            "seeds (n)",
            (", ".join(f"{row} {n}" for row, n in counts.items()) or "-")
            + (
                f"; {continued} of {len(runs)} runs were stopped and continued" if continued else ""
            ),
        ),
        ("code", f"{_distinct(commits)}; torch {torch}"),
    )


def _network(runs: Sequence[Run]) -> tuple[tuple[str, str], ...]:
    """Runs in a lab: what interfaces counted beside the ledger."""
    lines = [(run, counted(run.summary)) for run in runs]
    told = [f"{run.row}, seed {run.seed}: {text}" for run, text in lines if text is not None]
    return (("network", "; ".join(told)),) if told else ()


def used(runs: Sequence[Run], key: str) -> str:
    """The value of a key in these runs, by row where the rows differ. Settings of a wrapper are those
    of the runs that it is in."""
    values: dict[str, list[str]] = {}
    group, _, rest = key.partition(".")
    wrapper = rest.partition(".")[0] if group == "wrapper" else ""
    for run in runs:
        if wrapper and wrapper not in run.setting("wrap", [wrapper]):
            continue
        rows = values.setdefault(short(run.setting(key, "not in the record")), [])
        if run.row not in rows:
            rows.append(run.row)
    shown = {row for rows in values.values() for row in rows}
    if len(values) == 1 and shown == {run.row for run in runs}:
        return next(iter(values))
    return "; ".join(f"{', '.join(rows)}: {value}" for value, rows in values.items()) or "-"


def _choices(runs: Sequence[Run]) -> tuple[tuple[str, str, str, str], ...]:
    """(what is silent, what we chose at paper scale, config key, what these runs used)."""
    ids = [row.id for row in dynamic.TABLE_1.rows]
    own = [run for run in runs if run.row in ids]

    return tuple((c.silent, c.chosen, c.key, used(own, c.key)) for c in dynamic.SILENT_CHOICES)


def _traces(runs: Sequence[Run]) -> tuple[str, ...]:
    """One line a run that has a policy trace: what the policy changed after which epoch or step, and why."""
    lines = []
    for run in runs:
        trace = run.policy
        when = "epoch" if "epoch" in trace.columns else "step"
        if trace.empty or not {when, "label", "next_label", "reason"} <= set(trace.columns):
            continue
        changed = trace[trace["label"] != trace["next_label"]].fillna({"reason": ""})
        if changed.empty:
            continue
        steps = "; ".join(
            f"after {when} {number} {before} to {after} ({reason})"
            for number, before, after, reason in zip(
                changed[when],
                changed["label"],
                changed["next_label"],
                changed["reason"],
                strict=True,
            )
        )
        visited = ", ".join(dict.fromkeys(str(name) for name in trace["label"]))
        lines.append(f"{run.row}, seed {run.seed}: used {visited}. {steps}")
    return tuple(lines)


def build(runs: Sequence[Run], scale: str) -> Table:
    """Table I from the finished runs of one scale; UserError if they are not one experiment."""
    require_alike(runs, ALIKE)
    published = (*dynamic.TABLE_1.rows, *dynamic.SECOND_BLOCK)
    order = [row.id for row in published]
    ordered = sorted(
        (run for run in runs if run.row in order), key=lambda run: (order.index(run.row), run.seed)
    )
    return Table(
        scale=scale,
        header=header(ordered, scale),
        rows=tuple(_row(row, ordered) for row in published),
        verdicts=tuple((claim, verdict(claim, ordered, scale)) for claim in dynamic.CLAIMS),
        choices=_choices(ordered),
        traces=_traces(ordered),
    )
