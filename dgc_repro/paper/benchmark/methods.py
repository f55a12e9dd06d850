"""Every method on every workload: what its seeds show of its loss, quality against bytes with the Pareto
front, and modelled time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.paper import facts, frame, panels, plot, verdict
from dgc_repro.paper.benchmark import headline, speed
from dgc_repro.paper.benchmark.classes import WORDS, Judged, judge
from dgc_repro.paper.benchmark.speed import NETWORKS
from dgc_repro.paper.benchmark.workloads import ACCURACY, workloads
from dgc_repro.paper.frame import Column, Quantity, amount, number, seeds
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.statistics import seeds_needed
from dgc_repro.paper.verdict import MIN_SEEDS

ALIKE = ("scale.name", "train.on_nonfinite")
OF_WORKLOAD = (
    *("dataset", "model", "schedule"),
    *("train.epochs", "train.batch_size", "launch.workers"),
)
DENSE = "dense"
WORKERS = (2, 8, 32, 128)
QUALITY, LOSS, PAYLOAD = "test quality", "loss against dense", "payload a step"
LESS, SKIPPED = "payload: times less than dense", "skipped steps"
STEP = "modelled speedup of a step, full model on a V100"
TARGET = "modelled speedup to the target, slim model on a CPU"
"""Their ``setting`` in the frame is the network."""
REACHED = "target reached"
RESULTS = Path(__file__).resolve().parents[3] / "results"
WIRE = {workers: f"wire a step, N = {workers}" for workers in WORKERS}
MAIN = {"payload a step": PAYLOAD, "on the wire, 32 workers": WIRE[32]}
WIRE_PANELS = {f"on the wire, {workers} workers": WIRE[workers] for workers in (2, 8, 128)}
"""Panels of the two figures: quantity by title."""
SHOWS_THAT_IT_RUNS = "quick"
"""Nothing is concluded at this scale."""
SORTED_BY = "1 Gbit/s"
"""The network by whose speedups the heat maps are sorted."""
MOST_SHOWN, DARK_FROM = 32.0, 8.0
"""Speedups: where the colours of the heat map end, and from where on its numbers are white."""
LOSS_TICKS = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200)
OTHER_OPTIMIZER = ("adam", "onebit_adam", "demo", "signsgd")
"""Name prefixes of settings that use another optimizer than SGD. Their loss is not an effect of compression
alone."""
TUNES = "_lr"
"""Part of the name of a row that only tunes the learning rate."""
TUNED = "_tuned"
"""End of the name of a setting that has its own rate beside dense training's."""
LABELLED = (
    *(DENSE, "topk_0.01", "powersgd_2", "uniform_4"),
    *("ef_signsgd", "qsgd_7", "demo_32", "diloco_10"),
)
"""Settings whose name is written into the figure, beside those on the front."""
OTHER, MARK = "other optimizer", "+"
OTHER_MARKED = f"{MARK}: another optimizer than dense training's"
"""How tables and the heat maps mark these settings."""
BORROWED = " (borrowed)"
"""Of a learning rate that was tuned on another setting."""


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    present = [name for name in workloads() if any(run.model == name for run in _dense(runs))]
    if not present:
        raise UserError(
            "experiment.row: dense training of a workload to compare with, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/methods`"
        )
    require_alike(runs, ALIKE)
    if any(int(run.setting("launch.workers")) < 2 for run in runs):
        raise UserError("launch.workers: at least 2, between whom something is exchanged, got 1")
    runs = [run for run in runs if run.model in present]
    for name in present:
        require_alike([run for run in runs if run.model == name], OF_WORKLOAD)
    shown = [run for run in runs if TUNES not in run.method]
    has_target = any(run.summary.get("stopping") for run in runs)
    found = numbers(shown)
    judged = {name: judged_of(found, name) for name in present}
    tuning = pd.concat([_tuning(runs, name) for name in present], ignore_index=True)
    drawn, targets = partial(_figure, found, judged, shown, scale), _targets(runs, present)
    figures = _headline(found, judged, shown, scale)
    figures |= {"methods": partial(drawn, MAIN), "wire": partial(drawn, WIRE_PANELS)}
    if has_target:
        figures["speed"] = partial(_speed_figure, found, shown, present, targets, scale)
    if (found["quantity"] == STEP).any():
        figures["step"] = partial(_step_figure, found, scale)
    is_real = scale != SHOWS_THAT_IT_RUNS
    return made(
        __file__, scale, runs, found,
        [
            *([Section("What the seeds show", _classes(found, judged))] if is_real else []),
            Section("Settings"),
            *(Section(_title(name), _table(found, judged[name], runs, name)) for name in present),
            Section("Modelled time"),
            Section("Tuning", tuning.map(_cell) if len(tuning) else None),
        ],
        head=[
            ("training", _training(runs, present)),
            ("seconds", "modelled, from times of these runs and from counts: see Modelled time"),
        ],
        said={
            "shows": _shows(judged),
            "margins": "; ".join(f"{_title(name)} {_margin(name)}" for name in present),
            "priors": "; ".join(f"{_title(name)} {one.prior_text}" for name, one in judged.items()),
            "plan": "; ".join(_plan(found, one, name) for name, one in judged.items()),
            "tuning": _not_best(tuning, runs) if len(tuning) else "There are no such runs here.",
            "workers": speed.WORKERS,
            "seeds": MIN_SEEDS,
            "target": targets if has_target else "none at this scale",
            "settings": len({run.method for run in shown}),
            "workloads": "; ".join(map(_title, present)),
            "twins": ", ".join(f"{row} as {first}" for row, first in frame.twins(shown).items()) or "none",
        },
        figures=figures,
    )  # fmt: skip


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
        {
            "row": run.row,
            "seed": run.seed,
            "quantity": LOSS,
            "unit": workloads()[run.model].unit,
            "value": value,
        }
        for run in runs
        for value in [_loss(run, dense[run.model, run.seed])]
    )
    less = [
        frame.relative(own, PAYLOAD, f"{name}.{DENSE}", inverse=True, name=LESS)
        for name in workloads()
        if not (own := found[found["row"].str.startswith(f"{name}.")]).empty
    ]
    return frame.join(found, losses, *less, speedups(runs))


def speedups(runs: Sequence[Run]) -> pd.DataFrame:
    """Which runs reach the target where dense training of the same seed does, and the seconds of that
    training over a run's on each network: to the target with the model of these runs, for settings that reach
    it in each seed, and of a step with the full model."""
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
            for title, network in NETWORKS.items():
                modelled = {**line, "setting": title, "unit": "x", "clock": "modelled"}
                full = partial(work.seconds, device=speed.GPU, network=network)
                lines.append({**modelled, "quantity": STEP, "value": full(base) / full(run)})
                if np.isfinite(steps) and run.row not in late:
                    slim = partial(work.seconds, device=speed.CPU, network=network)
                    ratio = steps * slim(base, steps=steps) / (own * slim(run, steps=own))
                    lines.append({**modelled, "quantity": TARGET, "value": ratio})
    return frame.lines(lines)


def _dense(runs: Sequence[Run]) -> list[Run]:
    own = [run for run in runs if run.method == DENSE and run.model in workloads()]
    return [run for run in own if np.isfinite(quality(run))]


def quality(run: Run) -> float:
    """The workload's metric in the last test. Infinite: training diverged."""
    return _last(run, "test")


def _last(run: Run, split: str) -> float:
    metric = workloads()[run.model].metric
    value = run.epochs[f"{split}/{metric}"].iloc[-1]
    worst = -np.inf if metric == ACCURACY else np.inf
    return worst if pd.isna(value) else float(value)


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many: the run's collectives with the ring's factors."""
    calls = speed.calls_at(run, workers)
    return sum(moved_by(name, workers) * size for name, (_, size) in calls.items())


def _loss(run: Run, dense: float) -> float:
    own = quality(run)
    return dense - own if workloads()[run.model].metric == ACCURACY else 100 * (own / dense - 1)


def judged_of(found: pd.DataFrame, name: str) -> Judged:
    """What the losses of a workload's settings show."""
    return judge({row: frame.of(found, LOSS, row) for row in _rows(found, name)}, workloads()[name])


def _rows(found: pd.DataFrame, name: str) -> list[str]:
    return [row for row in found["row"].unique() if row.startswith(f"{name}.")]


def _title(name: str) -> str:
    return workloads()[name].title


def _margin(name: str) -> str:
    return f"{workloads()[name].margin:g} {workloads()[name].unit_in_words}"


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


def _points(found: pd.DataFrame, judged: Judged, against: str) -> dict[str, tuple[float, float]]:
    """Mean loss and mean bytes of each setting of a workload."""
    return {
        row: (shown.mean, float(np.mean(frame.of(found, against, row))))
        for row, shown in judged.shown.items()
    }


def _training(runs: Sequence[Run], present: Sequence[str]) -> str:
    """Steps, batch and optimizer of each workload's dense training."""
    said = []
    for name in present:
        run = next(run for run in _dense(runs) if run.model == name)
        own, steps = partial(run.setting, missing="?"), run.summary["steps"]
        said.append(
            f"{_title(name)}: {steps} steps ({own('train.epochs')} epochs) of "
            f"{own('launch.workers')} x {own('train.batch_size')}, {facts.short(own('optimizer'))}"
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
            f"{_title(name)}: {target:g}, tested every {often} steps and after each epoch, reached by "
            f"dense training in {reached} of {len(own)} seeds"
        )
    return "; ".join(said)


def _shows(judged: Mapping[str, Judged]) -> str:
    """How many settings of each workload are of which class, in sentences."""
    said = []
    for name, one in judged.items():
        own = [shown for row, shown in one.shown.items() if not _is_dense(row)]
        counts = Counter(shown.word for shown in own)
        seen = sorted({shown.n for shown in own})
        n = "-" if not seen else f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
        said.append(
            f"{_title(name)}, n = {n}: of {len(own)} settings {counts['equivalent']} are shown to be "
            f"equivalent to dense training, {counts['better']} better, {counts['worse']} worse; "
            f"{counts['undecided']} are undecided."
        )
    return "\n\n".join(said)


def _plan(found: pd.DataFrame, judged: Judged, name: str) -> str:
    """How many seeds show a setting without an effect to be equivalent, by the scatter of dense training."""
    dense = np.array(frame.of(found, QUALITY, f"{name}.{DENSE}"))
    margin = judged.workload.margin
    if not judged.workload.is_difference:
        dense, margin = np.log(dense), np.log1p(margin / 100)
    if len(dense) < MIN_SEEDS or not (sd := float(dense.std(ddof=1))):
        return f"{_title(name)} unknown"
    rows = len(judged.shown) - 1
    return f"{_title(name)} {seeds_needed(np.sqrt(2) * sd, margin, rows=rows)} seeds"


def _classes(found: pd.DataFrame, judged: Mapping[str, Judged]) -> pd.DataFrame:
    """The settings of each workload and class, those that send the fewest bytes first."""
    lines = []
    for name, one in judged.items():
        sizes = {row: size for row, (_, size) in _points(found, one, PAYLOAD).items()}
        for word in WORDS:
            rows = [
                row for row, shown in one.shown.items() if shown.word == word and not _is_dense(row)
            ]
            names = [row.partition(".")[2] for row in sorted(rows, key=sizes.__getitem__)]
            lines.append(
                {
                    "workload": _title(name),
                    "margin": _margin(name),
                    "class": word,
                    "number": len(names),
                    "settings, fewest bytes first": ", ".join(names) or "-",
                }
            )
    return pd.DataFrame(lines)


def _table(found: pd.DataFrame, judged: Judged, runs: Sequence[Run], name: str) -> pd.DataFrame:
    points = _points(found, judged, PAYLOAD)
    best, on_wire = (set(_front(_points(found, judged, what))) for what in (PAYLOAD, WIRE[32]))
    own = [run for run in runs if run.model == name]
    tuned = {run.method.partition(TUNES)[0] for run in own if TUNES in run.method}
    rates = {run.row: f"{run.setting('optimizer.lr'):g}" for run in own}
    rows = {row: row.partition(".")[2] for row in sorted(points, key=lambda row: -points[row][1])}
    columns = (
        seeds(LOSS),
        Column(judged.workload.heading, QUALITY, _or_diverged),
        Column(f"loss, {judged.workload.unit}", LOSS, partial(_or_diverged, decimals=1)),
        Column("payload", PAYLOAD, amount),
        Column("times less", LESS, lambda values: number([float(np.mean(values))], None, "x")),
        *(Column(f"wire, N={workers}", WIRE[workers], amount) for workers in WORKERS),
        Column("skipped", SKIPPED, lambda values: f"{np.mean(values):g}"),
    )
    table = frame.pivot(found, rows, columns, "setting")
    shown = [judged.shown[row] for row in rows]
    words = ["-" if _is_dense(row) else judged.shown[row].word for row in rows]
    table.insert(4, "95 % interval", [one.interval for one in shown])
    table.insert(5, "class", words)
    marks = [OTHER if _is_other(row) else _fronts(row in best, row in on_wire) for row in rows]
    table.insert(1, "front", marks)
    methods = {row: method.removesuffix(TUNED) for row, method in rows.items()}
    borrowed = {row for row, method in methods.items() if tuned and method not in tuned}
    table.insert(2, "rate", [rates[row] + (BORROWED if row in borrowed else "") for row in rows])
    return table


def _fronts(payload: bool, wire: bool) -> str:
    return ", ".join(name for name, is_on in {"payload": payload, "wire": wire}.items() if is_on)


def _or_diverged(values: Sequence[float], decimals: int | None = None) -> str:
    diverged = sum(not np.isfinite(value) for value in values)
    return f"diverged in {diverged} of {len(values)}" if diverged else number(values, decimals)


def _cell(value: object) -> object:
    return _or_diverged([value]) if isinstance(value, float) else value


def _is_other(row: str) -> bool:
    return row.partition(".")[2].startswith(OTHER_OPTIMIZER)


def _is_dense(row: str) -> bool:
    return row.partition(".")[2] == DENSE


def _tuning(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Every rate that was tried, beside the one that is used: means of the last validation and the last test
    over the seeds that tried rates."""
    own = [run for run in runs if run.model == name]
    families = dict.fromkeys(run.method.partition(TUNES)[0] for run in own if TUNES in run.method)
    used_seeds = {run.seed for run in own if TUNES in run.method}
    lines = []
    for family in families:
        rates: dict[tuple[float, bool], list[Run]] = {}
        for run in own:
            if run.method.partition(TUNES)[0] == family and run.seed in used_seeds:
                key = (float(run.setting("optimizer.lr")), TUNES not in run.method)
                rates.setdefault(key, []).append(run)
        for (rate, is_used), tried in sorted(rates.items()):
            lines.append(
                {
                    "workload": _title(name),
                    "setting": family,
                    "learning rate": f"{rate:g}",
                    "used": "yes" if is_used else "",
                    "last validation": float(np.mean([_last(run, "validation") for run in tried])),
                    "last test": float(np.mean([quality(run) for run in tried])),
                }
            )
    return pd.DataFrame(lines)


def _not_best(tuning: pd.DataFrame, runs: Sequence[Run]) -> str:
    """The families whose rate in use did not validate best, or was the smallest or the largest tried, and how
    much a validation on images says."""
    lower_is_better = {one.title for one in workloads().values() if not one.is_difference}
    worse, at_edge = [], []
    for _, tried in tuning.groupby(["workload", "setting"], sort=False):
        workload, setting = tried[["workload", "setting"]].iloc[0]
        values = tried["last validation"].replace([np.inf, -np.inf], np.nan).to_numpy(float)
        if np.isnan(values).all():
            continue
        best = int(np.nanargmin(values) if workload in lower_is_better else np.nanargmax(values))
        name = f"{setting} ({workload})"
        if tried["used"].iloc[best] != "yes":
            worse.append(name)
        if best in (0, len(tried) - 1):
            at_edge.append(name)
    images = {
        run.setting("dataset.validation") for run in runs if workloads()[run.model].is_difference
    }
    noise = "".join(
        f" {n} images validate: the standard error of an accuracy of 50 % is {50 / np.sqrt(n):.1f} points."
        for n in images
    )
    return (
        f"Another rate validated better than the one in use: {'; '.join(worse) or 'nowhere'}. The best "
        f"rate is the smallest or the largest that was tried: {'; '.join(at_edge) or 'nowhere'}.{noise}"
    )


def _headline(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> dict[str, Callable[[], Figure]]:
    """The README's picture, where these runs have its workload."""
    own = headline.stated(judged)
    if own is None:
        return {}
    rows = {setting: f"{own.workload}.{setting}" for setting in own.names}
    points = {
        setting: headline.Point(float(np.mean(frame.of(found, LESS, row))), shown)
        for setting, row in rows.items()
        if (shown := judged[own.workload].shown.get(row)) is not None
    }
    used = [run for run in runs if run.row in {rows[setting] for setting in points}]
    return {"headline": partial(headline.figure, own, points, facts.caption(used, scale))}


def _figure(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str,
    wanted: Mapping[str, str],
) -> Figure:  # fmt: skip
    """Loss against bytes: a column of panels a workload, a row for each quantity of ``wanted``."""
    shown = [
        _scatter(found, one, f"{_title(name)}: {title}", against)
        for title, against in wanted.items()
        for name, one in judged.items()
    ]
    said = (
        f"{facts.caption(runs, scale)}; means over seeds, bars: 95 % interval (moderated t) from {MIN_SEEDS} "
        "seeds on; line: Pareto front of the means; hollow: another optimizer than dense training's, not on "
        "the front; wire bytes computed from the recorded collectives"
    )
    return plot.figure("Loss of quality against bytes", said, shown, columns=len(judged), legend=0)


def _scatter(found: pd.DataFrame, judged: Judged, title: str, against: str) -> panels.Panel:
    points = _points(found, judged, against)
    best = _front(points)
    finite = {
        row: (size / 1e3, loss)
        for row, (loss, size) in points.items()
        if np.isfinite((loss, size)).all()
    }
    named = [*best, *(row for row in finite if row.partition(".")[2] in LABELLED)]
    drawn = panels.front(
        finite, {row: judged.shown[row].bars for row in finite}, best,
        {row: plot.ORANGE if row in best else plot.BLUE for row in finite},
        hollow=[row for row in finite if _is_other(row)], markersize=4, elinewidth=0.5,
    )  # fmt: skip
    _, draw = panels.panel(
        title, drawn, x="kB a worker and step", y=f"loss against dense, {judged.workload.unit}", log="x",
        subs=(1.0, 3.0),
    )  # fmt: skip

    def with_names(axes: Axes) -> None:
        draw(axes)
        axes.margins(x=0.16, y=0.1)
        axes.set_yscale("symlog", linthresh=5)
        plot.plain_ticks(axes.yaxis, LOSS_TICKS)
        losses = [loss for _, loss in finite.values()]
        axes.set_ylim(min(-2.0, 1.3 * min(losses)), max(2.0, 1.5 * max(losses)))
        panels.names({row.partition(".")[2]: finite[row] for row in named})(axes)
        if lost := [row.partition(".")[2] for row in points if row not in finite]:
            said = f"diverged in a seed: {', '.join(lost)}"
            axes.text(0.01, 0.01, said, transform=axes.transAxes, fontsize=6, wrap=True)

    return title, with_names


def _speed_figure(
    found: pd.DataFrame, runs: Sequence[Run], present: Sequence[str], targets: str, scale: str
) -> Figure:
    """Speedup over dense to the target, with the model that was trained: settings by networks."""
    said = (
        f"{facts.caption(runs, scale)}; steps to the target, compute and compression of these runs; the "
        f"network modelled, {speed.WORKERS} workers; target: {targets}; mean over these "
        f"seeds; k/n: only k of them reach it; {OTHER_MARKED}; sorted by {SORTED_BY}"
    )
    reached = {row: frame.of(found, REACHED, row) for row in found["row"].unique()}
    shares = {row: f"{sum(own):g}/{len(own)}" for row, own in reached.items() if own}
    of_workload = {
        _title(name): {row: shares[row] for row in _rows(found, name) if row in shares} for name in present
    }  # fmt: skip
    title = "Modelled time to the target, with the model that was trained: times as fast as dense"
    return _heat_maps(found, TARGET, title, said, of_workload)


def _step_figure(found: pd.DataFrame, scale: str) -> Figure:
    """Speedup of a step over dense, with the models at full size: settings by networks."""
    steps = found[found["quantity"] == STEP]
    rows = {name: own for name in workloads() if (own := _rows(steps, name))}
    said = (
        f"payloads of runs ({facts.scale_text(scale)}) scaled to the models at full size; nothing measured: "
        f"operations, launches and bytes counted for a V100, the network modelled, {speed.WORKERS} workers; "
        f"no quality was measured at this size; {OTHER_MARKED}; sorted by {SORTED_BY}"
    )
    of_model = {
        f"{workloads()[name].full_size} at full size": dict.fromkeys(own, "")
        for name, own in rows.items()
    }
    title = "Modelled time of a step, whatever it costs in quality: times as fast as dense"
    return _heat_maps(found, STEP, title, said, of_model)


def _heat_maps(
    found: pd.DataFrame, quantity: str, title: str, said: str, of_panel: Mapping[str, Mapping[str, str]]
) -> Figure:  # fmt: skip
    """A panel a workload, with a row for each setting (and what it says without a number) and a column for
    each network. The figure is high enough for the workload with the most rows."""
    most = max(map(len, of_panel.values()), default=1) or 1
    shown = [(name, _heat(found, quantity, rows)) for name, rows in of_panel.items()]
    return plot.figure(title, said, shown, size=(3.8, 1.6 + 0.16 * most), legend=0)


def _heat(found: pd.DataFrame, quantity: str, rows: Mapping[str, str]) -> Callable[[Axes], None]:
    def mean(row: str, network: str) -> float:
        own = frame.of(found, quantity, row, network)
        return float(np.mean(own)) if own else np.nan

    cells = {row: [mean(row, network) for network in NETWORKS] for row in rows}
    place = list(NETWORKS).index(SORTED_BY)
    order = sorted(rows, key=lambda row: -np.nan_to_num(cells[row][place]))

    def write(y: int, value: float) -> str:
        return f"{value:.{3 if value >= 100 else 2}g}" if np.isfinite(value) else rows[order[y]]

    draw = panels.heat_map(
        np.array([cells[row] for row in order]),
        [row.partition(".")[2] + (f" {MARK}" if _is_other(row) else "") for row in order], list(NETWORKS),
        write, lambda value: max(value, 1 / value) > DARK_FROM, ticks=({"fontsize": 7}, {"fontsize": 6.5}),
        cmap="RdBu", norm=LogNorm(1 / MOST_SHOWN, MOST_SHOWN),
    )  # fmt: skip

    def drawn(axes: Axes) -> None:
        if rows:
            draw(axes)
        else:
            axes.set_axis_off()
            plot.empty(axes, "dense training does not reach the target in any seed")

    return drawn
