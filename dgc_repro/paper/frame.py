"""One long table of numbers, the source of every number on a page.

Columns: ``row`` (the run's row, ``<model>.<method>``), ``setting`` (where a row has several numbers of one
quantity), ``seed``, ``quantity``, ``unit``, ``value``, ``step`` (of a curve; else NaN), ``clock`` (of
seconds: modelled or measured). Tables are pivots of it, numbers.csv is a groupby, a verdict compares two of
its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.paper.records import Run, require_alike

COLUMNS = ("row", "setting", "seed", "quantity", "unit", "value", "step", "clock")
Values = Sequence[float]
Known = dict[tuple[str, str], float]
"""Printed numbers by row and quantity."""
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
TWIN_METRICS = ("train/loss", "test/loss")


@dataclass(frozen=True)
class Quantity:
    """A number of a run: its ``unit``, and the function that reads it. NaN: the run does not have it."""

    unit: str
    of: Callable[[Run], float]
    clock: str = ""


@dataclass(frozen=True)
class Relative:
    """A number over that of the row ``to`` of the same seed (percent where ``unit`` is %); ``inverse``: the
    other way round."""

    quantity: str
    to: str
    unit: str = "x"
    inverse: bool = False


SENT = {
    "floats sent": Quantity("floats", lambda run: run.last("comm/floats")),
    "payload": Quantity("bytes", lambda run: run.last("comm/payload_bytes")),
    "wire": Quantity("bytes", lambda run: run.last("comm/wire_bytes")),
}
"""What one worker sent over the whole run: values alone (the papers' unit, bits / 32); values, indices and
scales as packed; what the collectives moved."""


def lines(found: Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """A frame of these lines; columns that a line lacks are empty, and lines whose value is NaN left out."""
    if not isinstance(found, pd.DataFrame):
        found = pd.DataFrame([dict(line) for line in found])
    words = {
        name: found[name].astype(object).fillna("") if name in found else ""
        for name in ("setting", "unit", "clock")
    }
    frame = found.assign(**words).reindex(columns=list(COLUMNS))
    frame = frame.astype({"value": float, "step": float})
    return frame[frame["value"].notna()].reset_index(drop=True)


def measure(runs: Iterable[Run], quantities: Mapping[str, Quantity | Relative]) -> pd.DataFrame:
    """Each quantity of each run; a `Relative` one after those that it is made of."""
    found = lines(
        {
            "row": run.row,
            "seed": run.seed,
            "quantity": name,
            "unit": quantity.unit,
            "value": quantity.of(run),
            "clock": quantity.clock,
        }
        for run in runs
        for name, quantity in quantities.items()
        if isinstance(quantity, Quantity)
    )
    shares = {name: one for name, one in quantities.items() if isinstance(one, Relative)}
    return join(
        found,
        *(
            relative(found, one.quantity, one.to, inverse=one.inverse, name=name, unit=one.unit)
            for name, one in shares.items()
        ),
    )


def longer(table: pd.DataFrame, quantities: Mapping[str, tuple[str, ...]]) -> pd.DataFrame:
    """The frame of a wide ``table`` with the columns row, seed and, where needed, setting, step and clock.
    ``quantities``: by column, the name and the unit of its numbers, and the clock of seconds."""
    parts = []
    for column, (name, unit, *clock) in quantities.items():
        part = table.assign(quantity=name, unit=unit, value=table[column].astype(float))
        parts.append(part.assign(clock=clock[0]) if clock else part)
    return lines(pd.concat(parts, ignore_index=True))


def study_of(runs: Sequence[Run], keys: Sequence[str] = ()) -> pd.DataFrame:
    """The lines of all runs, with the ``seed`` of the run and ``of``, its row. Raises UserError unless all
    runs of a row have the same study settings, and all runs with a model the same values of ``keys``."""
    require_alike(runs, ("scale.name",))
    for row in dict.fromkeys(run.row for run in runs):
        require_alike([run for run in runs if run.row == row], ("study",))
    require_alike([run for run in runs if run.setting("model")], keys)
    tables = [run.lines.assign(seed=run.seed, of=run.row) for run in runs]
    return pd.concat(tables, ignore_index=True)


def join(*frames: pd.DataFrame) -> pd.DataFrame:
    """All lines of several frames."""
    kept = [frame for frame in frames if not frame.empty]
    return pd.concat(kept, ignore_index=True) if kept else lines([])


def values(frame: pd.DataFrame, quantity: str, row: str, setting: str = "") -> pd.Series:
    """A quantity of a row by seed."""
    chosen = (frame["quantity"] == quantity) & (frame["row"] == row) & frame["step"].isna()
    chosen &= frame["setting"] == setting
    return frame[chosen].set_index("seed")["value"].sort_index()


def of(frame: pd.DataFrame, quantity: str, row: str, setting: str = "") -> list[float]:
    """The same without the seeds."""
    return list(values(frame, quantity, row, setting))


def relative(
    frame: pd.DataFrame,
    quantity: str,
    baseline: str,
    *,
    inverse: bool = False,
    name: str,
    unit: str = "x",
) -> pd.DataFrame:
    """Each row's value over the baseline row's of the same seed, in percent where ``unit`` is %; ``inverse``:
    the baseline's over the row's."""
    own = frame[(frame["quantity"] == quantity) & frame["step"].isna()]
    base = own[own["row"] == baseline].set_index(["seed", "setting"])["value"]
    own = own.join(base.rename("base"), on=["seed", "setting"]).dropna(subset="base")
    with np.errstate(divide="ignore", invalid="ignore"):
        value = own["base"] / own["value"] if inverse else own["value"] / own["base"]
    if unit == "%":
        value = 100 * value
    return (
        own.assign(value=value, quantity=name, unit=unit)
        .drop(columns="base")
        .dropna(subset="value")
    )


def twins(runs: Sequence[Run]) -> dict[str, str]:
    """Rows that are the same training as an earlier row: losses of all epochs equal bit for bit in all seeds
    that the two share. By row, the earlier row."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    for run in runs:
        if not run.epochs.empty and all(name in run.epochs for name in TWIN_METRICS):
            curve = tuple(run.epochs[list(TWIN_METRICS)].to_numpy(float).ravel())
            found.setdefault(run.row, {})[run.seed] = curve
    same: dict[str, str] = {}
    for row, curves in found.items():
        for first in found:
            shared = curves.keys() & found[first].keys()
            is_twin = shared and all(curves[seed] == found[first][seed] for seed in shared)
            if first == row or (first not in same and is_twin):
                break
        if first != row:
            same[row] = first
    return same


def summary(
    frame: pd.DataFrame, printed: Mapping[tuple[str, str], float] | None = None
) -> pd.DataFrame:
    """numbers.csv: mean, sample standard deviation and n over seeds of every number, beside the printed one
    (``printed``: by row and quantity)."""
    keys = ["row", "setting", "quantity", "unit", "clock", "step"]
    grouped = frame.groupby(keys, sort=False, dropna=False)["value"]
    table = grouped.agg(mean="mean", sd="std", n="count").reset_index()
    pairs = zip(table["row"], table["quantity"], strict=True)
    return table.assign(printed=[(printed or {}).get(pair, math.nan) for pair in pairs])


def number(values: Values, decimals: int | None = None, unit: str = "") -> str:
    """Mean ± sample standard deviation over seeds, three digits or ``decimals``; '-' without values."""
    if not len(values):
        return "-"
    mean = float(np.mean(values))
    if math.isinf(mean) or math.isnan(mean):
        never = sum(math.isinf(value) for value in values)
        return f"never in {never} of {len(values)}" if never < len(values) else "never"
    if decimals is None:
        decimals = _decimals(mean)
    text = f"{round(mean, decimals) + 0.0:.{decimals}f}{unit}"  # no -0.0
    if len(values) < 2:
        return text
    return f"{text} ± {float(np.std(values, ddof=1)):.{decimals}f}"


def signed(values: Values, decimals: int) -> str:
    """The same with the sign of the mean."""
    text = number(values, decimals)
    return text if text.startswith("-") else f"+{text}"


def percent(values: Values, decimals: int = 1, unit: str = " %") -> str:
    """A share as percent."""
    return number([100 * value for value in values], decimals, unit)


def times(values: Values) -> str:
    """A ratio."""
    return number(values, None, "x")


def amount(values: Values, units: Sequence[tuple[float, str]] = BYTE_UNITS) -> str:
    """The mean in the largest decimal unit that keeps it at or above one."""
    if not len(values):
        return "-"
    mean = float(np.mean(values))
    size, unit = next((u for u in units if mean >= u[0]), units[-1])
    return f"{mean / size:.3g} {unit}".rstrip()


def count(values: Values) -> str:
    """A number of floats or steps in thousands, millions, ..."""
    return amount(values, COUNT_UNITS)


def plain(value: float, unit: str = "") -> str:
    """A printed number as the paper has it; '-' for none."""
    return "-" if math.isnan(value) else f"{value + 0.0:g}{unit}"


@dataclass(frozen=True)
class Column:
    """A column of a table: a quantity of each row under a ``heading``, written by ``form`` (an int: so many
    decimals). With ``printed``, by row and quantity, a column of the printed numbers goes before it; ``{}``:
    never."""

    heading: str
    quantity: str
    form: Callable[[Values], str] | int | None = None
    setting: str = ""
    printed: Known | None = None
    printed_unit: str = ""


def seeds(quantity: str) -> Column:
    """The column n: the seeds that have a quantity."""
    return Column("n", quantity, lambda values: str(len(values)), printed={})


def pivot(
    frame: pd.DataFrame, rows: Mapping[str, str], columns: Sequence[Column], first: str = "method"
) -> pd.DataFrame:
    """A table of text: a line for each row (``rows``: their labels), a column for each quantity."""
    table: dict[str, list[str]] = {first: list(rows.values())}
    for column in columns:
        heading, form = column.heading, column.form
        if column.printed:
            known = (column.printed.get((row, column.quantity), math.nan) for row in rows)
            table[f"{heading}: printed"] = [plain(v, column.printed_unit) for v in known]
            heading += ": ours"
        cells = [of(frame, column.quantity, row, column.setting) for row in rows]
        table[heading] = [form(c) if callable(form) else number(c, form) for c in cells]
    return pd.DataFrame(table)


def _decimals(mean: float) -> int:
    size = abs(mean)
    if size == 0 or size >= 100:
        return 0
    return 1 if size >= 10 else 2 if size >= 0.1 else 2 - math.floor(math.log10(size))
