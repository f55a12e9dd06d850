"""Every method on every workload: quality against bytes with the Pareto front, modelled time to dense
training's target, and which setting to use on which network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.paper import facts, frame, plot, statistics, verdict
from dgc_repro.paper.benchmark import headline, speed
from dgc_repro.paper.benchmark.speed import NETWORKS
from dgc_repro.paper.frame import Column, Quantity, amount, number, seeds
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import MIN_SEEDS

ALIKE = ("scale.name", "launch.workers", "train.on_nonfinite")
OF_WORKLOAD = ("dataset", "model", "schedule", "train.epochs", "train.batch_size")
WORKLOADS = {
    "resnet": "ResNet, images",
    "lstm": "LSTM, text",
    "transformer": "transformer, text",
}
DENSE = "dense"
WORKERS = (2, 8, 32, 128)
QUALITY, LOSS, PAYLOAD = "test accuracy, or perplexity", "loss against dense", "payload a step"
LESS, SKIPPED = "payload: times less than dense", "skipped steps"
STEP, TARGET = "modelled speedup of a step", "modelled speedup to the target"
REACHED = "target reached"
PLACES = tuple(f"{network}, {device}" for device in (speed.CPU, speed.GPU) for network in NETWORKS)
"""The frame's ``setting`` of the two speedups."""
ALLOWED = (0.0, 0.5, 1.0)
"""Losses of quality in the table "Use this": points, or percent of perplexity."""
RESULTS = Path(__file__).resolve().parents[3] / "results"
WIRE = {workers: f"wire a step, N = {workers}" for workers in WORKERS}
MAIN = {"payload a step": PAYLOAD, "on the wire, 32 workers": WIRE[32]}
WIRE_PANELS = {f"on the wire, {workers} workers": WIRE[workers] for workers in (2, 8, 128)}
"""Panels of the two figures: quantity by title."""
SHOWS_THAT_IT_RUNS = "quick"
"""No advice is printed at this scale."""
MOST_SHOWN, DARK_FROM = 32.0, 8.0
"""Speedups: where the colours of the heat map end, and from where on its numbers are white."""
LOSS_TICKS = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200)
OTHER_OPTIMIZER = ("adam", "onebit_adam", "demo", "signsgd")
"""Name prefixes of settings that use another optimizer than SGD. Their loss is not an effect of compression
alone."""
TUNES = "_lr"
"""Part of the name of a row that only tunes the learning rate."""
LABELLED = (
    DENSE,
    "topk_0.01",
    "powersgd_2",
    "uniform_4",
    "ef_signsgd",
    "qsgd_7",
    "demo_32",
    "diloco_10",
)
"""Settings whose name is written into the figure, beside those on the front."""
LETTER = (0.0125, 0.035)
"""Width and height of a letter of these names, in shares of the panel."""
OTHER, MARK = "other optimizer", "+"
"""How tables and the heat map mark these settings."""
BORROWED = " (borrowed)"
"""Of a learning rate that was tuned on another setting."""


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    present = [name for name in WORKLOADS if any(run.model == name for run in _dense(runs))]
    if not present:
        raise UserError(
            "experiment.row: dense training of a workload to compare with, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/methods`"
        )
    require_alike(runs, ALIKE)
    if int(runs[0].setting("launch.workers")) < 2:
        raise UserError("launch.workers: at least 2, between whom something is exchanged, got 1")
    runs = [run for run in runs if run.model in present]
    for name in present:
        require_alike([run for run in runs if run.model == name], OF_WORKLOAD)
    shown = [run for run in runs if TUNES not in run.method]
    has_target = any(run.summary.get("stopping") for run in runs)
    found = numbers(shown)
    tuning = pd.concat([_tuning(runs, name) for name in present], ignore_index=True)
    best = pd.concat([advice(found, name) for name in present], ignore_index=True)
    tried = _not_best(tuning, runs) if len(tuning) else "There are no such runs here."
    sections = [
        *([Section("Use this", best)] if scale != SHOWS_THAT_IT_RUNS else []),
        Section("Settings"),
        *(Section(WORKLOADS[name], _table(found, runs, name)) for name in present),
        Section("Modelled time"),
        Section("Tuning", tuning.map(_cell) if len(tuning) else None),
    ]
    return made(
        __file__,
        scale,
        runs,
        found,
        sections,
        head=[
            ("training", _training(runs, present)),
            ("seconds", "modelled, from times of these runs and from counts: see Modelled time"),
        ],
        said={
            "tuning": tried,
            "workers": speed.WORKERS,
            "seeds": MIN_SEEDS,
            "target": _targets(runs, present) if has_target else "none at this scale",
            "dense": _dense_error(found, present),
            "settings": len({run.method for run in shown}),
            "twins": _twins(shown),
            "low_rank": _low_rank(found, shown, present),
        },
        figures=_headline(found, shown, scale)
        | {
            "methods": lambda: _figure(found, shown, present, scale, MAIN),
            "wire": lambda: _figure(found, shown, present, scale, WIRE_PANELS),
        }
        | ({"speed": lambda: _speed_figure(found, shown, present, scale)} if has_target else {}),
    )


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: quality, loss against dense, bytes and modelled speedups of each row
    ``<workload>.<setting>``. Seeds whose dense training is missing or diverged are left out."""
    dense = {(run.model, run.seed): quality(run) for run in _dense(runs)}
    runs = [run for run in runs if (run.model, run.seed) in dense]
    quantities = {
        QUALITY: Quantity("", quality),
        PAYLOAD: Quantity(
            "bytes", lambda run: run.last("comm/payload_bytes") / max(1, speed.exchanged(run))
        ),
        SKIPPED: Quantity("steps", lambda run: float(run.epochs["train/skipped_steps"].sum())),
        **{
            name: Quantity("bytes", partial(wire_a_step, workers=workers))
            for workers, name in WIRE.items()
        },
    }
    found = frame.measure(runs, quantities)
    losses = frame.lines(
        {"row": run.row, "seed": run.seed, "quantity": LOSS, "unit": _unit(run), "value": value}
        for run in runs
        for value in [_loss(run, dense[run.model, run.seed])]
    )
    less = [
        frame.relative(own, PAYLOAD, f"{name}.{DENSE}", inverse=True, name=LESS)
        for name in WORKLOADS
        if not (own := found[found["row"].str.startswith(f"{name}.")]).empty
    ]
    return frame.join(found, losses, *less, speedups(runs))


def speedups(runs: Sequence[Run]) -> pd.DataFrame:
    """Which runs reach the target where dense training of the same seed does. Seconds of that training over a
    run's on each network and device: of a step, and to the target for settings that reach it in each seed."""
    counts, lines = speed.counts(RESULTS), []
    for name in dict.fromkeys(run.model for run in runs):
        work = speed.workload(name, runs, counts)
        dense = {run.seed: run for run in work.runs if run.method == DENSE}
        needed = {seed: speed.steps_to_target(run) for seed, run in dense.items()}
        late = {
            run.row for run in work.runs
            if np.isfinite(needed.get(run.seed, np.nan)) and not np.isfinite(speed.steps_to_target(run))
        }  # fmt: skip
        for run in (run for run in work.runs if run.seed in dense):
            base, steps, own = dense[run.seed], needed[run.seed], speed.steps_to_target(run)
            line = {"row": run.row, "seed": run.seed}
            if np.isfinite(steps):
                is_reached = float(np.isfinite(own))
                lines.append(
                    {**line, "quantity": REACHED, "unit": verdict.YES_OR_NO, "value": is_reached}
                )
            for device, title in product((speed.CPU, speed.GPU), NETWORKS):
                seconds = partial(work.seconds, device=device, network=NETWORKS[title])
                modelled = {
                    **line, "setting": f"{title}, {device}", "unit": "x", "clock": "modelled"
                }  # fmt: skip
                ratio = seconds(base) / seconds(run)
                lines.append({**modelled, "quantity": STEP, "value": ratio})
                if np.isfinite(steps) and run.row not in late:
                    ratio = steps * seconds(base, steps=steps) / (own * seconds(run, steps=own))
                    lines.append({**modelled, "quantity": TARGET, "value": ratio})
    return frame.lines(lines)


def _dense(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.method == DENSE and np.isfinite(quality(run))]


def quality(run: Run) -> float:
    """Test accuracy in percent, or perplexity, after the last epoch. Infinite: training diverged."""
    return _last(run, "test")


def _last(run: Run, split: str) -> float:
    word = f"{split}/perplexity" if _has_words(run) else f"{split}/accuracy_percent"
    value = run.epochs[word].iloc[-1]
    worst = np.inf if _has_words(run) else -np.inf
    return worst if pd.isna(value) else float(value)


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many: the run's collectives with the ring's factors."""
    calls = speed.calls_at(run, workers)
    return sum(moved_by(name, workers) * size for name, (_, size) in calls.items())


def _has_words(run: Run) -> bool:
    return "test/perplexity" in run.epochs


def _unit(run: Run) -> str:
    return "%" if _has_words(run) else "points"


def _loss(run: Run, dense: float) -> float:
    own = quality(run)
    return 100 * (own / dense - 1) if _has_words(run) else dense - own


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names whose point (loss, bytes) no other one undercuts in both, by bytes. Points that are not
    finite are on no front."""
    finite = {name: point for name, point in points.items() if np.isfinite(point).all()}
    kept = []
    least = np.inf
    for name, (loss, _) in sorted(finite.items(), key=lambda item: (item[1][1], item[1][0])):
        if loss < least:
            kept.append(name)
            least = loss
    return kept


def _front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The front of the settings that train with dense training's optimizer."""
    return front({row: point for row, point in points.items() if not _is_other(row)})


def _points(found: pd.DataFrame, name: str, against: str) -> dict[str, tuple[float, float]]:
    """Mean loss and mean bytes of each setting of a workload."""
    rows = [row for row in found["row"].unique() if row.startswith(f"{name}.")]
    return {
        row: (
            float(np.mean(frame.of(found, LOSS, row))),
            float(np.mean(frame.of(found, against, row))),
        )
        for row in rows
    }


def _training(runs: Sequence[Run], present: Sequence[str]) -> str:
    """Steps, batch and optimizer of each workload's dense training."""
    said = []
    for name in present:
        run = next(run for run in _dense(runs) if run.model == name)
        own, steps = partial(run.setting, missing="?"), run.summary["steps"]
        said.append(
            f"{WORKLOADS[name]}: {steps} steps ({own('train.epochs')} epochs) of "
            f"{own('launch.workers')} x {own('train.batch_size')}, SGD with momentum "
            f"{own('optimizer.momentum')}"
        )
    return "; ".join(said)


def _targets(runs: Sequence[Run], present: Sequence[str]) -> str:
    """Each workload's target, how often it is tested, and in how many seeds dense training reaches it."""
    said = []
    for name in present:
        own = [run for run in runs if run.model == name and run.method == DENSE]
        if (target := own[0].setting("stopping.target")) is None:
            continue
        reached = sum(np.isfinite(speed.steps_to_target(run)) for run in own)
        often = own[0].setting("stopping.every_steps")
        said.append(
            f"{WORKLOADS[name]}: {target:g}, tested every {often} steps and after each epoch, reached by "
            f"dense training in {reached} of {len(own)} seeds"
        )
    return "; ".join(said)


def _dense_error(found: pd.DataFrame, present: Sequence[str]) -> str:
    """The standard error of dense training's mean, which all losses of a workload share, in their unit."""
    said = []
    for name in present:
        own = frame.of(found, QUALITY, f"{name}.{DENSE}")
        if len(own) > 1:
            error = float(np.std(own, ddof=1) / np.sqrt(len(own)))
            is_text = "text" in WORKLOADS[name]
            relative = f"{100 * error / np.mean(own):.2g} %"
            said.append(f"{WORKLOADS[name]} {relative if is_text else f'{error:.2g} points'}")
    return ", ".join(said) or "unknown with one seed"


def _twins(runs: Sequence[Run]) -> str:
    """Settings that trained exactly as another one."""
    same = frame.twins(runs)
    return ", ".join(f"{row} as {first}" for row, first in same.items()) or "none"


def _low_rank(found: pd.DataFrame, runs: Sequence[Run], present: Sequence[str]) -> str:
    """How much more PowerSGD of rank 2 compresses the full models than the slim ones."""
    counts, said = speed.counts(RESULTS), []
    for name in present:
        slim = frame.of(found, LESS, f"{name}.powersgd_2")
        if slim and (full := speed.workload(name, runs, counts).full):
            times = full.parameters / (full.vectors + 2 * full.factors)
            said.append(f"{WORKLOADS[name]} {np.mean(slim):.0f} and {times:.0f} times")
    return ", ".join(said) or "no such runs here"


def _table(found: pd.DataFrame, runs: Sequence[Run], name: str) -> pd.DataFrame:
    points = _points(found, name, PAYLOAD)
    best, on_wire = (set(_front(_points(found, name, what))) for what in (PAYLOAD, WIRE[32]))
    own = [run for run in runs if run.model == name]
    tuned = {run.method.partition(TUNES)[0] for run in own if TUNES in run.method}
    rates = {run.row: f"{run.setting('optimizer.lr'):g}" for run in own}
    rows = {row: row.partition(".")[2] for row in sorted(points, key=lambda row: -points[row][1])}
    unit = found.loc[(found["quantity"] == LOSS) & found["row"].isin(rows), "unit"].iloc[0]
    columns = (
        seeds(LOSS),
        Column("perplexity" if unit == "%" else "accuracy, %", QUALITY, _or_diverged),
        Column(f"loss, {unit}", LOSS, partial(_or_diverged, decimals=1)),
        Column("95 % interval", LOSS, _interval_alone),
        Column("payload", PAYLOAD, amount),
        Column("times less", LESS, lambda values: number([float(np.mean(values))], None, "x")),
        *(Column(f"wire, N={workers}", WIRE[workers], amount) for workers in WORKERS),
        Column("skipped", SKIPPED, lambda values: f"{np.mean(values):g}"),
    )
    table = frame.pivot(found, rows, columns, "setting")
    marks = [OTHER if _is_other(row) else _fronts(row in best, row in on_wire) for row in rows]
    table.insert(1, "front", marks)
    borrowed = {row for row, method in rows.items() if tuned and method not in tuned}
    table.insert(2, "rate", [rates[row] + (BORROWED if row in borrowed else "") for row in rows])
    return table


def _fronts(payload: bool, wire: bool) -> str:
    return ", ".join(name for name, is_on in {"payload": payload, "wire": wire}.items() if is_on)


def advice(found: pd.DataFrame, name: str) -> pd.DataFrame:
    """The setting with the largest modelled speedup of a step on each network, among those that lose no more
    than allowed in the mean over seeds."""
    rows = [row for row in found["row"].unique() if row.startswith(f"{name}.")]
    losses = {row: frame.of(found, LOSS, row) for row in rows}
    lines = []
    for place in PLACES:
        speeds = {row: frame.of(found, STEP, row, place) for row in rows}
        line = {"workload": WORKLOADS[name], "network, device": place}
        for allowed in ALLOWED:
            good = [row for row in rows if speeds[row] and not _is_other(row)]
            good = [row for row in good if np.mean(losses[row]) <= allowed]
            line[f"loss up to {allowed:g}"] = "-"
            if good:
                best = max(good, key=lambda row: float(np.mean(speeds[row])))
                is_supported = best.endswith(f".{DENSE}") or supports(losses[best], allowed)
                line[f"loss up to {allowed:g}"] = (
                    f"{best.partition('.')[2]}: {np.mean(speeds[best]):.2f}x, loss "
                    f"{interval(losses[best])}{'' if is_supported else ' *'}"
                )
        lines.append(line)
    return pd.DataFrame(lines)


def supports(losses: Sequence[float], allowed: float) -> bool:
    """Whether at least `MIN_SEEDS` losses have a 95 % interval that ends at most at the allowed loss."""
    return len(losses) >= MIN_SEEDS and float(np.mean(losses)) + _half(losses) <= allowed


def interval(values: Sequence[float]) -> str:
    """Mean, 95 % t interval from `MIN_SEEDS` seeds on, and n."""
    mean, half, n = float(np.mean(values)), _half(values), len(values)
    if not half:
        return f"{_plain(mean)} (n={n})"
    return f"{_plain(mean)} [{_plain(mean - half)}, {_plain(mean + half)}] (n={n})"


def _plain(value: float) -> str:
    """Two decimals, without a minus before zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _interval_alone(values: Sequence[float]) -> str:
    mean, half = float(np.mean(values)), _half(values)
    return f"{mean - half:.1f} to {mean + half:.1f}" if half else "-"


def _half(values: Sequence[float]) -> float:
    """Half the width of the 95 % t interval. 0: fewer than `MIN_SEEDS` values, or one is not finite."""
    if len(values) < MIN_SEEDS or not np.isfinite(values).all():
        return 0.0
    mean, _, high = statistics.interval(values)
    return high - mean


def _or_diverged(values: Sequence[float], decimals: int | None = None) -> str:
    diverged = sum(not np.isfinite(value) for value in values)
    return f"diverged in {diverged} of {len(values)}" if diverged else number(values, decimals)


def _cell(value: object) -> object:
    return _or_diverged([value]) if isinstance(value, float) else value


def _is_other(row: str) -> bool:
    return row.partition(".")[2].startswith(OTHER_OPTIMIZER)


def _tuning(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Every rate that was tried on seed 0, beside the one that is used: last validation and test."""
    own = [run for run in runs if run.model == name and run.seed == 0]
    families = dict.fromkeys(run.method.partition(TUNES)[0] for run in own if TUNES in run.method)
    lines = []
    for family in families:
        tried = [run for run in own if run.method.partition(TUNES)[0] == family]
        for run in sorted(tried, key=lambda run: float(run.setting("optimizer.lr"))):
            lines.append(
                {
                    "workload": WORKLOADS[name],
                    "setting": family,
                    "learning rate": f"{run.setting('optimizer.lr'):g}",
                    "used": "" if TUNES in run.method else "yes",
                    "last validation": _last(run, "validation"),
                    "last test": quality(run),
                }
            )
    return pd.DataFrame(lines)


def _not_best(tuning: pd.DataFrame, runs: Sequence[Run]) -> str:
    """The families whose rate in use did not validate best, or was the smallest or the largest tried, and how
    much a validation on images says."""
    worse, at_edge = [], []
    for _, tried in tuning.groupby(["workload", "setting"], sort=False):
        workload, setting = tried[["workload", "setting"]].iloc[0]
        values = tried["last validation"].replace([np.inf, -np.inf], np.nan).to_numpy(float)
        if np.isnan(values).all():
            continue
        best = int(np.nanargmin(values) if "text" in workload else np.nanargmax(values))
        name = f"{setting} ({workload})"
        if tried["used"].iloc[best] != "yes":
            worse.append(name)
        if best in (0, len(tried) - 1):
            at_edge.append(name)
    images = {run.setting("dataset.validation") for run in runs if not _has_words(run)}
    noise = "".join(
        f" {n} images validate: the standard error of an accuracy of 50 % is {50 / np.sqrt(n):.1f} points."
        for n in images
    )
    return (
        f"Another rate validated better than the one in use: {'; '.join(worse) or 'nowhere'}. The best "
        f"rate is the smallest or the largest that was tried: {'; '.join(at_edge) or 'nowhere'}.{noise}"
    )


def _headline(
    found: pd.DataFrame, runs: Sequence[Run], scale: str
) -> dict[str, Callable[[], Figure]]:
    """The README's picture, where these runs have its workload."""
    own = headline.stated()
    rows = {setting: f"{own.workload}.{setting}" for setting in own.names}
    losses = {setting: frame.of(found, LOSS, row) for setting, row in rows.items()}
    points = {
        setting: headline.Point(
            float(np.mean(frame.of(found, LESS, rows[setting]))),
            float(np.mean(values)),
            _half(values),
        )
        for setting, values in losses.items()
        if values
    }
    used = [run for run in runs if run.row in {rows[setting] for setting in points}]
    if not used:
        return {}
    workload, unit = WORKLOADS[own.workload], _unit(used[0])
    unit = "% of perplexity" if unit == "%" else f"{unit} of accuracy"
    caption = facts.caption(used, scale)
    return {"headline": lambda: headline.figure(own, points, workload, unit, caption)}


def _figure(
    found: pd.DataFrame,
    runs: Sequence[Run],
    present: Sequence[str],
    scale: str,
    wanted: Mapping[str, str],
) -> Figure:
    """Loss against bytes: a column of panels a workload, a row for each quantity of ``wanted``."""
    panels: plot.Panels = [
        (f"{WORKLOADS[name]}: {title}", partial(_scatter, found, name, against))
        for title, against in wanted.items()
        for name in present
    ]
    said = (
        f"{facts.caption(runs, scale)}; means over seeds, bars: 95 % interval from {MIN_SEEDS} seeds on; "
        "line: Pareto front; hollow: another optimizer than SGD, not on the front; wire bytes computed from "
        "the recorded collectives"
    )
    return plot.figure(
        "Loss of quality against bytes", said, panels, columns=len(present), legend=0
    )


def _scatter(found: pd.DataFrame, name: str, against: str, axes: Axes) -> None:
    points = {
        row: (loss, size / 1e3) for row, (loss, size) in _points(found, name, against).items()
    }
    best = _front(points)
    unit = found.loc[(found["quantity"] == LOSS) & found["row"].isin(points), "unit"].iloc[0]
    finite = {row: point for row, point in points.items() if np.isfinite(point).all()}
    for row, (loss, size) in finite.items():
        half = _half(frame.of(found, LOSS, row))
        colour = plot.ORANGE if row in best else plot.BLUE
        look: dict[str, Any] = {
            "color": colour,
            "markerfacecolor": "white" if _is_other(row) else colour,
        }
        axes.errorbar(size, loss, yerr=half, fmt="o", markersize=4, elinewidth=0.5, **look)
    edge = [finite[row] for row in best]
    line: dict[str, Any] = {"color": plot.ORANGE, "drawstyle": "steps-post"}
    axes.plot([size for _, size in edge], [loss for loss, _ in edge], **line)
    plot.name_axes(axes, "kB a worker and step", f"loss against dense, {unit}", "x")
    plot.plain_log(axes.xaxis, (1.0, 3.0))
    axes.margins(x=0.16, y=0.1)
    axes.set_yscale("symlog", linthresh=5)
    axes.yaxis.set_major_locator(FixedLocator(LOSS_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    losses = [loss for loss, _ in finite.values()]
    axes.set_ylim(min(-2.0, 1.3 * min(losses)), max(2.0, 1.5 * max(losses)))
    shown = [*best, *(row for row in finite if row.partition(".")[2] in LABELLED)]
    _label(axes, {row.partition(".")[2]: finite[row][::-1] for row in shown})
    if lost := [row.partition(".")[2] for row in points if row not in finite]:
        said = f"diverged in a seed: {', '.join(lost)}"
        axes.text(0.01, 0.01, said, transform=axes.transAxes, fontsize=6, wrap=True)


def _label(axes: Axes, names: Mapping[str, tuple[float, float]]) -> None:
    """Write each name beside its point (x, y), but none over an earlier one."""
    to_axes = axes.transScale + axes.transLimits
    written: list[tuple[float, float, float]] = []
    for name, point in names.items():
        x, y = to_axes.transform(point)
        end = x + LETTER[0] * len(name)
        if all(end < a or b < x or abs(y - v) > LETTER[1] for a, b, v in written):
            written.append((x, end, y))
            axes.annotate(name, point, xytext=(3, 3), textcoords="offset points", fontsize=6)


def _speed_figure(
    found: pd.DataFrame, runs: Sequence[Run], present: Sequence[str], scale: str
) -> Figure:
    """Speedup over dense to the target: a heat map a workload, settings by networks and devices."""
    panels: plot.Panels = [(WORKLOADS[name], partial(_heat, found, name)) for name in present]
    said = (
        f"{facts.caption(runs, scale)}; the network modelled, {speed.WORKERS} workers; {speed.CPU}: the slim "
        f"model, compute and compression measured; {speed.GPU}: the full model, nothing measured; target: "
        f"{_targets(runs, present)}; mean over these seeds; k/n: only k of them reach it; empty: not "
        f"counted; {MARK}: another optimizer than SGD; sorted by {PLACES[1]}"
    )
    most = max(sum(row.startswith(f"{name}.") for row in found["row"].unique()) for name in present)
    title, size = "Modelled time to the target: times as fast as dense", (4.6, 2.0 + 0.16 * most)
    return plot.figure(title, said, panels, size=size, legend=0)


def _heat(found: pd.DataFrame, name: str, axes: Axes) -> None:
    rows = [row for row in found["row"].unique() if row.startswith(f"{name}.")]
    reached = {row: frame.of(found, REACHED, row) for row in rows}
    of = {
        what: {row: [frame.of(found, what, row, place) for place in PLACES] for row in rows}
        for what in (STEP, TARGET)
    }
    cells = {
        row: [float(np.mean(own)) if own else np.nan for own in line]
        for row, line in of[TARGET].items()
    }
    rows = sorted((row for row in rows if reached[row]), key=lambda r: -np.nan_to_num(cells[r][1]))
    if not rows:
        axes.set_axis_off()
        return plot.empty(axes, "dense training does not reach the target in any seed")
    table = np.array([cells[row] for row in rows])
    axes.imshow(table, cmap="RdBu", norm=LogNorm(1 / MOST_SHOWN, MOST_SHOWN), aspect="auto")
    for y, row in enumerate(rows):
        for x, value in enumerate(cells[row]):
            is_counted = bool(of[STEP][row][x])
            text = f"{sum(reached[row]):g}/{len(reached[row])}" if is_counted else ""
            if np.isfinite(value):
                text = f"{value:.{3 if value >= 100 else 2}g}"
            is_dark = np.isfinite(value) and max(value, 1 / value) > DARK_FROM
            colour = "white" if is_dark else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=6, color=colour)
    axes.set_xticks(range(len(PLACES)), PLACES, rotation=60, ha="right", fontsize=7)
    names = [row.partition(".")[2] + (f" {MARK}" if _is_other(row) else "") for row in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=6.5)
    return axes.grid(visible=False)
