"""Which plain quantizer ends below dense training? The study around the dynamic paper's plateau.

One factor at a time around plain 8-bit (bits, rounding, scale, error feedback), and the full grid
of the other three at 4 bits. The factors are read from each run's config.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import dynamic
from dgc_repro.report import style
from dgc_repro.report.figures import caption
from dgc_repro.report.quantities import payload_bytes, test_accuracy
from dgc_repro.report.records import Run, require_alike
from dgc_repro.report.table import ALIKE, Measured, header, spread
from dgc_repro.report.verdict import MIN_SEEDS

UNDER_DENSE_POINTS = 2.0
"""A setting is called below dense when it ends more than this many points under it. Ours."""
CENTRE_BITS, GRID_BITS = 8, 4
ROUNDINGS = ("nearest", "toward_zero", "stochastic")
CSV_HEADINGS = (
    "bits",
    "rounding",
    "block",
    "error_feedback",
    "n",
    "test_accuracy_percent",
    "sd",
    "under_dense_points",
    "payload_share_percent",
    "scale",
)


@dataclass(frozen=True)
class Factors:
    """A quantizer's settings. ``bits`` None is dense; ``block`` None is one scale a tensor."""

    bits: int | None
    rounding: str = "nearest"
    block: int | None = None
    error_feedback: bool = False

    @property
    def label(self) -> str:
        """The setting in words."""
        if self.bits is None:
            return "dense"
        scale = "tensor" if self.block is None else f"block {self.block}"
        fed = ", EF" if self.error_feedback else ""
        return f"{self.bits}-bit, {self.rounding}, {scale}{fed}"

    @property
    def plain(self) -> bool:
        """A quantizer without error feedback."""
        return self.bits is not None and not self.error_feedback


@dataclass(frozen=True)
class Setting:
    """One setting's results: final test accuracy, difference to dense paired by seed, bytes."""

    factors: Factors
    accuracy: Measured
    under_dense: Measured | None
    payload_share: Measured | None


@dataclass(frozen=True)
class Study:
    """All settings of one study, dense first."""

    scale: str
    header: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    sentence: str


def factors_of(config: Mapping[str, Any]) -> Factors:
    """The quantizer's settings from a resolved config; dense where the compressor has no bits."""
    compressor = config.get("compressor") or {}
    if not isinstance(compressor, Mapping) or compressor.get("bits") is None:
        return Factors(None)
    wrap = config.get("wrap") or []
    names = [w.get("_target_", w.get("name", "")) if isinstance(w, Mapping) else w for w in wrap]
    wrapped = any(
        str(name).rpartition(".")[2].replace("_", "").lower() == "errorfeedback" for name in names
    )
    block = compressor.get("block")
    return Factors(
        bits=int(compressor["bits"]),
        rounding=str(compressor.get("rounding", "nearest")),
        block=None if block is None else int(block),
        error_feedback=wrapped,
    )


def _order(factors: Factors) -> tuple[int, int, int, bool]:
    rounding = ROUNDINGS.index(factors.rounding) if factors.rounding in ROUNDINGS else 9
    return factors.bits or 0, rounding, factors.block or 0, factors.error_feedback


def _by_factors(runs: Sequence[Run]) -> dict[Factors, dict[int, Run]]:
    """Runs by setting and seed. A setting that both parts of the study contain counts once."""
    groups: dict[Factors, dict[int, Run]] = {}
    for run in sorted(runs, key=lambda run: run.name):
        groups.setdefault(factors_of(run.config), {}).setdefault(run.seed, run)
    return dict(sorted(groups.items(), key=lambda item: _order(item[0])))


def _setting(factors: Factors, own: Mapping[int, Run], dense: Mapping[int, Run]) -> Setting:
    pairs = [(run, dense[seed]) for seed, run in own.items() if seed in dense]
    return Setting(
        factors,
        _some(spread([test_accuracy(run) for run in own.values()])),
        spread([test_accuracy(other) - test_accuracy(run) for run, other in pairs]),
        spread([100 * payload_bytes(run) / payload_bytes(other) for run, other in pairs]),
    )


def _some(value: Measured | None) -> Measured:
    assert value is not None, "a group has at least one run"
    return value


def build(runs: Sequence[Run], scale: str) -> Study:
    """The study from its finished runs; UserError where there is no run or they are not alike."""
    if not runs:
        raise UserError("experiment.artifact: at least one finished run of sensitivity, got none")
    require_alike(runs, ALIKE)
    groups = _by_factors(runs)
    dense = groups.get(Factors(None), {})
    settings = tuple(_setting(factors, own, dense) for factors, own in groups.items())
    lines = tuple(
        ("settings, runs", f"{len(groups)}, {sum(map(len, groups.values()))}")
        if name == "seeds (n)"
        else (name, value)
        for name, value in header(runs, scale)
    )
    return Study(scale, lines, settings, _sentence(settings, scale))


def _sentence(settings: Sequence[Setting], scale: str) -> str:
    """Which plain quantizers end more than ``UNDER_DENSE_POINTS`` under dense, from the data."""
    judged = [s for s in settings if s.factors.plain and s.under_dense is not None]
    dense = dynamic.TABLE_1.printed("none", "test_accuracy")
    gap = dense - dynamic.TABLE_1.printed("static8", "test_accuracy")
    context = f"(scale {scale}; the paper's static 8-bit ends {gap:.2f} points under its dense)"
    if not judged:
        return f"No plain quantizer has a dense run of the same seed to compare with {context}."
    low = [s for s in judged if s.under_dense and s.under_dense.mean > UNDER_DENSE_POINTS]
    counts = sorted({s.under_dense.n for s in judged if s.under_dense})
    n = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    word = "Indicative, with fewer than three seeds: " if counts[0] < MIN_SEEDS else ""
    if not low:
        return (
            f"{word}None of the {len(judged)} plain quantizers ends more than {UNDER_DENSE_POINTS:g} "
            f"points of test accuracy under dense, n = {n} {context}."
        )
    named = "; ".join(
        f"{s.factors.label}: {s.under_dense.mean:.1f} points under" for s in low if s.under_dense
    )
    return (
        f"{word}Of {len(judged)} plain quantizers, {len(low)} end more than {UNDER_DENSE_POINTS:g} "
        f"points of test accuracy under dense, n = {n} {context}: {named}."
    )


def _draw_bits(axes: Axes, study: Study) -> None:
    dense = next((s for s in study.settings if s.factors.bits is None), None)
    plain = [
        s
        for s in study.settings
        if s.factors.bits is not None and s.factors == Factors(s.factors.bits)
    ]
    variants = [
        s
        for s in study.settings
        if s.factors.bits == CENTRE_BITS and s.factors != Factors(CENTRE_BITS)
    ]
    widths = sorted({s.factors.bits or 0 for s in (*plain, *variants)})
    if dense is not None:
        sd = dense.accuracy.sd or 0.0
        axes.axhline(dense.accuracy.mean, color=style.BLACK, linestyle="--", label="dense")
        axes.axhspan(
            dense.accuracy.mean - sd, dense.accuracy.mean + sd, color="#888888", alpha=0.2, lw=0
        )
    axes.errorbar(
        [widths.index(s.factors.bits or 0) for s in plain],
        [s.accuracy.mean for s in plain],
        yerr=[s.accuracy.sd or 0.0 for s in plain],
        color=style.ORANGE,
        marker="s",
        markersize=5,
        capsize=2,
        label="plain: nearest, one scale a tensor",
    )
    looks = ((style.BLUE, "^"), (style.GREEN, "v"), (style.PURPLE, "D"), (style.SKY, "P"))
    for position, setting in enumerate(variants):
        colour, marker = looks[position % len(looks)]
        axes.errorbar(
            # Side by side to the right of plain 8-bit, within its category.
            [widths.index(CENTRE_BITS) + 0.16 * (position + 1)],
            [setting.accuracy.mean],
            yerr=[setting.accuracy.sd or 0.0],
            color=colour,
            marker=marker,
            markersize=5,
            capsize=2,
            linestyle="none",
            label=setting.factors.label,
        )
    axes.set_xticks(range(len(widths)), [str(width) for width in widths])
    axes.set_xlabel("bits a value")
    axes.set_ylabel("final test accuracy (%)")


def _draw_grid(axes: Axes, figure: Figure, study: Study) -> None:
    grid = [s for s in study.settings if s.factors.bits == GRID_BITS]
    if not grid:
        axes.set_axis_off()
        axes.text(0.5, 0.5, f"no run at {GRID_BITS} bits", ha="center", transform=axes.transAxes)
        return
    roundings = [r for r in ROUNDINGS if any(s.factors.rounding == r for s in grid)]
    columns = sorted(
        {(s.factors.block, s.factors.error_feedback) for s in grid}, key=lambda c: (c[1], c[0] or 0)
    )
    texts: dict[tuple[int, ...], str] = {}
    values = np.full((len(roundings), len(columns)), np.nan)
    for setting in grid:
        factors = setting.factors
        column = columns.index((factors.block, factors.error_feedback))
        row = roundings.index(factors.rounding)
        values[row, column] = setting.accuracy.mean
        texts[row, column] = _written(setting.accuracy, 1).replace(" +-", "\n+-")
    # The colours reach up to dense, so that settings level with it look alike.
    reach = [s.accuracy.mean for s in study.settings if s.factors.bits in (None, GRID_BITS)]
    low, high = min(reach), max(*reach, min(reach) + 1.0)  # at least a point of accuracy
    image = axes.imshow(values, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for (row, column), value in np.ndenumerate(values):
        text = texts.get((row, column), "-")
        colour = "white" if value < (low + high) / 2 else "black"
        axes.text(column, row, text, ha="center", va="center", color=colour)
    axes.set_xticks(
        range(len(columns)),
        [
            ("tensor" if block is None else f"block\n{block}") + ("\nEF" if fed else "")
            for block, fed in columns
        ],
    )
    axes.set_yticks(range(len(roundings)), roundings)
    axes.grid(visible=False)
    axes.set_xlabel("one scale a ..., EF = error feedback")
    axes.set_ylabel("rounding")
    figure.colorbar(image, ax=axes, label="final test accuracy (%)")


def figure(study: Study, runs: Sequence[Run]) -> Figure:
    """Left: accuracy by bits and one factor at a time at 8 bits. Right: the grid at 4 bits."""
    counts = [s.accuracy.n for s in study.settings]
    with style.house_style():
        drawing = Figure(figsize=(9.6, 4.6), layout="constrained")
        left, right = drawing.subplots(1, 2, width_ratios=(1.25, 1.0))
        _draw_bits(left, study)
        _draw_grid(right, drawing, study)
        style.title(
            left, "Final test accuracy, one factor at a time", caption(runs, study.scale, counts)
        )
        dense = next((s for s in study.settings if s.factors.bits is None), None)
        note = "no dense run" if dense is None else f"dense: {_written(dense.accuracy, 1)} %"
        note = f"mean +- sd over seeds; {note}"
        style.title(right, f"Full grid at {GRID_BITS} bits", note)
        drawing.legend(loc="outside lower center", ncols=3)
    return drawing


def markdown(study: Study) -> str:
    """Header, the sentence and one line a setting."""
    lines = [
        "# Sensitivity of the final accuracy to the quantizer "
        f"({'paper scale' if study.scale == 'paper' else f'reduced scale: {study.scale}'})",
        "",
        *(f"- {name}: {value}" for name, value in study.header),
        "",
        study.sentence,
        "",
        "Test accuracy after the last epoch, mean +- sample standard deviation over n seeds; "
        "points under dense, paired by seed; payload as percent of dense. EF = error feedback.",
        "",
        "| setting | n | test acc % | points under dense | payload % of dense |",
        "|---|---|---|---|---|",
    ]
    for s in study.settings:
        lines.append(
            f"| {s.factors.label} | {s.accuracy.n} | {_written(s.accuracy, 2)} | "
            f"{_written(s.under_dense, 2)} | {_written(s.payload_share, 1, with_sd=False)} |"
        )
    return "\n".join(lines) + "\n"


def _written(value: Measured | None, digits: int, with_sd: bool = True) -> str:
    if value is None:
        return "-"
    sd = f" +- {value.sd:.{digits}f}" if with_sd and value.sd is not None else ""
    return f"{value.mean:.{digits}f}{sd}"


def csv_text(study: Study) -> str:
    """One line a setting, for programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADINGS)
    for s in study.settings:
        f = s.factors
        dense = f.bits is None
        writer.writerow(
            (
                "dense" if dense else f.bits,
                "" if dense else f.rounding,
                "" if dense else ("tensor" if f.block is None else f.block),
                "" if dense else str(f.error_feedback).lower(),
                s.accuracy.n,
                f"{s.accuracy.mean:.10g}",
                "" if s.accuracy.sd is None else f"{s.accuracy.sd:.10g}",
                "" if s.under_dense is None else f"{s.under_dense.mean:.10g}",
                "" if s.payload_share is None else f"{s.payload_share.mean:.10g}",
                study.scale,
            )
        )
    return out.getvalue()
