"""GraVAC's Table III: the paper's milliseconds and speedups beside ours, cell by cell.

``build`` makes plain data; ``report/multilevel_render.py`` writes it. Milliseconds stand side by
side and are never judged, the hardware differs; ours are also given in multiples of a `copy_` of the
same gradient in the same run. Speedups are quotients of paired repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgc_repro.errors import UserError
from dgc_repro.paper import gravac
from dgc_repro.paper.claim import Claim
from dgc_repro.paper.gravac import DIRECT, MULTILEVEL, SINGLE_PASS
from dgc_repro.report.records import FREE_KEYS, Measurement, require_alike
from dgc_repro.report.study import code_of, distinct, warning
from dgc_repro.report.table import short
from dgc_repro.report.verdict import (
    MIN_SEEDS,
    PAPER_SCALE,
    Verdict,
    bootstrap_interval,
    verdict_of_counts,
    verdict_of_repeats,
)

LAYERWISE, ONE_VECTOR = "layerwise", "one vector"
BLOCKS = (LAYERWISE, ONE_VECTOR)
"""By tensor, as the paper; and, ours, the whole gradient as one vector."""
WEAK = "weak"
WAYS = (WEAK, DIRECT, MULTILEVEL, SINGLE_PASS)
ALIKE = ("scale", "seed", "measure.factors", "measure.repeats", "measure.steps", "launch.threads")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of ``n`` repeats."""

    middle: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None for no values."""
        if not values:
            return None
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(middle), float(low), float(high), len(values))


@dataclass(frozen=True)
class Quotient:
    """Median of the repeats' quotients and the 95 % bootstrap interval of that median."""

    middle: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Quotient | None:
        """None for no values; no interval for less than three."""
        if not values:
            return None
        middle = float(np.median(values))
        enough = len(values) >= MIN_SEEDS
        low, high = bootstrap_interval(values, np.median) if enough else (middle, middle)
        return cls(middle, low, high, len(values))


@dataclass(frozen=True)
class Cell:
    """One model and method in one block. ``milliseconds`` and ``copies`` (multiples of a `copy_`) by
    way; ``speedup`` is direct over multi-level, ``single_pass`` multi-level over single pass."""

    block: str
    model: str
    method: str
    milliseconds: Mapping[str, Spread]
    copies: Mapping[str, Spread]
    speedup: Quotient | None
    single_pass: Quotient | None
    chosen: Mapping[str, Any]

    def printed(self, part: str) -> float | None:
        """The paper's number; its table is layerwise."""
        if self.block != LAYERWISE:
            return None
        return gravac.printed(self.model, self.method, part)


@dataclass(frozen=True)
class Table:
    """Everything that is printed."""

    scale: str
    header: tuple[tuple[str, str], ...]
    warning: str
    caption: str
    cells: tuple[Cell, ...]
    verdicts: tuple[tuple[Claim, Verdict], ...]
    choices: tuple[tuple[str, str, str, str], ...]

    @property
    def scale_label(self) -> str:
        """What stands beside every paper number."""
        return "paper scale" if self.scale == PAPER_SCALE else f"reduced scale: {self.scale}"


def build(measurements: Sequence[Measurement], scale: str) -> Table:
    """Table III from the finished measurements of one scale; UserError if they are not alike."""
    require_alike(measurements, ALIKE)
    by_model = {m.row: m for m in measurements}
    models = [model for model, _, _, _ in gravac.MODELS]
    cells = tuple(
        _cell(by_model.get(model), block, model, method)
        for block in BLOCKS
        for model in models
        for method, _ in gravac.METHODS
    )
    ordered = [by_model[model] for model in models if model in by_model]
    return Table(
        scale=scale,
        header=_header(ordered, scale),
        warning=_warning(ordered),
        caption=_caption(ordered, scale),
        cells=cells,
        verdicts=_verdicts(by_model, scale),
        choices=_choices(ordered),
    )


def _cell(measurement: Measurement | None, block: str, model: str, method: str) -> Cell:
    columns = _columns(measurement, block, method)
    copies = columns.get("copy", [])
    own = {way: columns[way] for way in WAYS if way in columns}
    return Cell(
        block=block,
        model=model,
        method=method,
        milliseconds={way: s for way, values in own.items() if (s := Spread.of(values))},
        copies={
            way: s for way, values in own.items() if (s := Spread.of(_quotients(values, copies)))
        },
        speedup=Quotient.of(_quotients(own.get(DIRECT, []), own.get(MULTILEVEL, []))),
        single_pass=Quotient.of(_quotients(own.get(MULTILEVEL, []), own.get(SINGLE_PASS, []))),
        chosen=_chosen(measurement, block, method),
    )


def _columns(measurement: Measurement | None, block: str, method: str) -> dict[str, list[float]]:
    """Milliseconds of each way and of the copy, by repeat; a way that was not timed is absent."""
    if measurement is None:
        return {}
    frame = measurement.table
    rows = frame[(frame["block"] == block) & (frame["method"] == method)].sort_values("repeat")
    found = {}
    for way in (*WAYS, "copy"):
        if f"{way}_ms" not in rows.columns:
            raise UserError(f"{measurement.folder}: no {way}_ms in repeats.csv; measure again")
        values = [float(value) for value in rows[f"{way}_ms"]]
        if values and np.isfinite(values).all():
            found[way] = values
    return found


def _quotients(above: Sequence[float], below: Sequence[float]) -> list[float]:
    if not (above and below):
        return []
    return [a / b for a, b in zip(above, below, strict=True)]


def _chosen(measurement: Measurement | None, block: str, method: str) -> Mapping[str, Any]:
    if measurement is None:
        return {}
    for entry in measurement.summary.get("chosen", ()):
        if (entry["block"], entry["method"]) == (block, method):
            return dict(entry)
    return {}


def _verdicts(by_model: Mapping[str, Measurement], scale: str) -> tuple[tuple[Claim, Verdict], ...]:
    judged = []
    for claim in (*gravac.CLAIMS, *gravac.SINGLE_PASS_CLAIMS):
        model, method, _ = claim.id.split(".")
        columns = _columns(by_model.get(model), LAYERWISE, method)
        (check,) = claim.checks
        ratios = _quotients(columns.get(check.greater, []), columns.get(check.lesser, []))
        judged.append((claim, verdict_of_repeats(claim, ratios, scale)))
    for claim in gravac.EQUALITY_CLAIMS:
        model, method, _ = claim.id.split(".")
        found = [_chosen(by_model.get(model), block, method) for block in BLOCKS]
        found = [chosen for chosen in found if chosen]
        kept = sum(chosen["direct_kept"] for chosen in found)
        tensors = sum(chosen["tensors"] for chosen in found)
        compared = f"{kept:,} chosen entries in {tensors} tensors differ"
        counts = [chosen["multilevel_apart"] for chosen in found]
        judged.append((claim, verdict_of_counts(claim, counts, scale, compared)))
    return tuple(judged)


def _header(measurements: Sequence[Measurement], scale: str) -> tuple[tuple[str, str], ...]:
    """Scale, hardware, threads, gradients, repeats, code: every distinct value."""
    environments = [m.environment for m in measurements]
    printed_mb = {model: mb for model, _, _, mb in gravac.MODELS}
    gradients = [
        f"{gravac.LABELS[m.row]}: {m.summary['parameters']:,} parameters "
        f"({m.summary['parameters'] * 4 / 2**20:.1f} MiB; the paper's: {printed_mb[m.row]}) in "
        f"{m.summary['tensors']} tensors, {m.environment.get('data')}, step "
        f"{m.summary['steps']}, norm {m.summary['gradient_norm']:.3g}"
        for m in measurements
    ]
    return (
        ("scale", scale if scale == PAPER_SCALE else f"{scale} (reduced: see the sizes below)"),
        ("hardware", distinct([e.get("hardware") for e in environments])),
        (
            "device",
            f"{distinct([e.get('device') for e in environments])}, "
            f"{distinct([e.get('threads_per_worker') for e in environments])} threads, kernels: "
            f"{distinct([e.get('kernels') for e in environments])}; the paper's: V100",
        ),
        *((f"gradient {number}", text) for number, text in enumerate(gradients, start=1)),
        (
            "repeats (n)",
            f"{distinct([m.setting('measure.repeats') for m in measurements])} of each way and "
            "block, after 2 that are not counted",
        ),
        (
            "cores busy with other work before each",
            ", ".join(f"{e.get('busy_cores', float('nan')):.2f}" for e in environments),
        ),
        ("code", code_of(environments)),
    )


def _warning(measurements: Sequence[Measurement]) -> str:
    """A line where the machine was busy before one of the measurements, else empty."""
    return warning(
        measurements,
        "; speedups and multiples of a copy_ compare neighbours in time and suffer less",
    )


def _caption(measurements: Sequence[Measurement], scale: str) -> str:
    label = "paper scale" if scale == PAPER_SCALE else f"reduced scale: {scale}"
    hardware = distinct([m.environment.get("hardware") for m in measurements])
    threads = distinct([m.environment.get("threads_per_worker") for m in measurements])
    repeats = distinct([m.setting("measure.repeats") for m in measurements])
    busy = "; busy machine" if _warning(measurements) else ""
    return f"{label}; {hardware}, {threads} threads; n = {repeats} repeats{busy}"


def _choices(measurements: Sequence[Measurement]) -> tuple[tuple[str, str, str, str], ...]:
    """(what is silent, what we chose, config key, what these measurements used)."""

    def used(key: str) -> str:
        if key == "dataset":
            return distinct([m.environment.get("data") for m in measurements])
        values = [m.setting(key) for m in measurements]
        if key == "measure":
            values = [
                {k: v for k, v in value.items() if k in ("factors", "methods")}
                for value in values
                if isinstance(value, dict)
            ]
        return distinct([short(_without_places(value)) for value in values])

    return tuple((c.silent, c.chosen, c.key, used(c.key)) for c in gravac.SILENT_CHOICES)


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if k not in FREE_KEYS}
    return value
