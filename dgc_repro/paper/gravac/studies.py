"""Shared by the pages of GraVAC's computed and measured runs: looks and labels of models, head, frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.frame import longer, of
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, VGG16
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

MODELLED_MS = ("ms", "modelled")
"""Unit and clock of milliseconds."""
COLOURS = {RESNET101: (plot.BLUE, "o"), VGG16: (plot.GREEN, "s"), LSTM: (plot.ORANGE, "^")}


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """Each model's label: the paper's name where the model has the paper's size, else layers and size."""
    found = dict(MODELS)
    for run in runs:
        name, *rest = facts.model_text(run).split(", ")
        size = next((part for part in rest if part.endswith(" parameters")), "")
        if run.row in found and any("in place of" in part for part in rest):
            found[run.row] = f"{name}, {size.removesuffix(' parameters')}"
    return found


def head(
    runs: Sequence[Run], scale: str, more: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """The head of a page of computed or measured runs."""
    environments = [run.environment for run in runs]
    models = (f"{facts.model_text(run)}, {run.summary['tensors']} tensors" for run in runs)
    return (
        ("scale", facts.scale_text(scale)),
        ("models", "; ".join(models)),
        *more,
        ("hardware", facts.distinct(e.get("hardware") for e in environments)),
        ("code", facts.code_text(environments)),
    )


def numbers(
    runs: Sequence[Run],
    columns: Mapping[str, tuple[str, ...]],
    setting: Callable[[pd.Series], str] = lambda line: "",
) -> pd.DataFrame:
    """The frame of the runs' lines. ``columns``: as of `longer`; ``setting``: of a line."""
    table = pd.concat(run.lines.assign(row=run.row, seed=run.seed) for run in runs)
    return longer(table.assign(setting=table.apply(setting, axis=1)), columns)


def found_in(runs: Sequence[Run], column: str) -> list[float]:
    """Every value of a column of the runs' lines, ascending."""
    return sorted({float(value) for run in runs for value in run.lines[column]})


def by_model(
    frame: pd.DataFrame, quantity: str, settings: Mapping[float, str], label: str, dashes: str,
    factor: float = 1.0,
) -> list[panels.Draw]:  # fmt: skip
    """A line for each model through ``quantity`` (times ``factor``) at the settings, by x."""
    drawn = []
    for model, (colour, marker) in COLOURS.items():
        found = {x: v[0] for x, s in settings.items() if (v := of(frame, quantity, model, s))}
        look = Look(f"{MODELS[model]}, {label}", colour, marker, dashes)
        if found:
            line = sorted(found), [factor * found[x] for x in sorted(found)]
            drawn.append(panels.lines([line], **look.line))
    return drawn


def own_latency(runs: Sequence[Run]) -> float:
    """Microseconds between nodes as the network's file has them: the first line's."""
    return float(runs[0].lines["latency_us"].iloc[0])


def at_latency(setting: str, latency: float, own: float) -> str:
    """The setting of a number at a latency; the network's own goes without saying."""
    return setting if latency == own else f"{setting}, {latency:g} us"
