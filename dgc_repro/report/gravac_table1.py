"""GraVAC's Table I: the models as built here, beside the printed sizes and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from dgc_repro.paper import gravac_table1 as paper
from dgc_repro.paper.gravac import LABELS, MODELS
from dgc_repro.paper.gravac_table1 import LAYERS, MEGABYTES, TABLE_1
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.study import (
    Block,
    Page,
    header,
    judged,
    lines,
    require_one_study,
    scale_label,
    table_of,
)
from dgc_repro.report.verdict import Values

PRINTED_ROWS = [model for model, _, _, _ in MODELS]
HEADINGS = (
    *("model", "layers: paper", "layers: ours", "MB: paper", "MiB: ours", "parameters", "tensors"),
    *("dataset: paper", "target: paper"),
)


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished records of one scale; UserError if they are not alike."""
    require_one_study(records)
    found = {row["row"]: row for row in lines(table_of(records))}
    return Page(
        title="GraVAC, Table I: models",
        scale=scale,
        header=header(records, scale, [("sizes", "the paper's, at every scale")]),
        warning="",
        blocks=(_block(found),),
        verdicts=judged(paper.CLAIMS, values(found), scale),
        notes=(),
        choices=paper.SILENT_CHOICES,
        numbers=tuple(
            {
                "model": row["row"],
                **{key: row[key] for key in (LAYERS, "tensors", "parameters", MEGABYTES)},
            }
            for row in found.values()
        ),
    )


def values(found: Mapping[str, Mapping[str, Any]]) -> Values:
    """Layers and sizes of built and printed models, where there are built ones."""
    return {
        column: {
            name: {0: float(value)}
            for model in PRINTED_ROWS
            if model in found
            for name, value in (
                (paper.built(model), found[model][column]),
                (paper.printed(model), TABLE_1.printed(model, column)),
            )
        }
        for column in (LAYERS, MEGABYTES)
    }


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Sizes of the printed models, printed beside built."""
    found = {row["row"]: row for row in lines(table_of(records))}
    shown = [model for model in PRINTED_ROWS if model in found]
    with style.house_style():
        drawing = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = drawing.subplots()
        for shift, colour, label, sizes in (
            (-0.2, style.BLUE, "ours, MiB", [found[model][MEGABYTES] for model in shown]),
            (0.2, style.ORANGE, "paper, MB", [TABLE_1.printed(m, MEGABYTES) for m in shown]),
        ):
            places = [place + shift for place in range(len(shown))]
            bars = axes.bar(places, sizes, width=0.38, color=colour, label=label)
            axes.bar_label(bars, fmt="%.0f")
        axes.set_xticks(range(len(shown)), [LABELS[model] for model in shown])
        axes.set_ylabel("parameters (MiB)")
        style.title(axes, "Models of GraVAC", scale_label(scale))
        drawing.legend(loc="outside lower center", ncols=2)
    return drawing


def _block(found: Mapping[str, Mapping[str, Any]]) -> Block:
    rows = []
    for row, label in {**{m: LABELS[m] for m in PRINTED_ROWS}, **paper.OWN_ROWS}.items():
        printed = row in PRINTED_ROWS
        own = found.get(row)
        ours = ("not built",) * 4 if own is None else _ours(own)
        rows.append(
            (
                label,
                f"{TABLE_1.printed(row, LAYERS):g}" if printed else "-",
                ours[0],
                f"{TABLE_1.printed(row, MEGABYTES):g}" if printed else "-",
                *ours[1:],
                paper.DATA.get(row, "-"),
                paper.TARGETS.get(row, "-"),
            )
        )
    return Block(
        "Models",
        "Counted from the networks as they are built, with the heads that the printed sizes need. The "
        "targets of a scale are our own dense runs': gravac/table2.",
        HEADINGS,
        tuple(rows),
        narrow=(0, 1, 2, 3, 4, 5, 8),
    )


def _ours(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (
        f"{row[LAYERS]}",
        f"{row[MEGABYTES]:.1f}",
        f"{row['parameters']:,}",
        f"{row['tensors']}",
    )
