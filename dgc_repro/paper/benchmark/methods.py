"""Every method on every workload: what its seeds show of its loss, its bytes, and modelled time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.paper import facts, frame, panels, plot
from dgc_repro.paper.benchmark import headline, speed
from dgc_repro.paper.benchmark.classes import WORDS, Judged, judge
from dgc_repro.paper.benchmark.speed import NETWORKS
from dgc_repro.paper.benchmark.workloads import ACCURACY, workloads
from dgc_repro.paper.frame import Column, Quantity, Relative, amount, hits, number, seeds
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.verdict import MIN_SEEDS, YES_OR_NO

ALIKE = ("scale.name", "train.on_nonfinite")
OF_WORKLOAD = (
    *("dataset", "model", "schedule"),
    *("train.epochs", "train.batch_size", "launch.workers"),
)
DENSE = "dense"
TUNES = "_lr"
"""Part of the name of a row that only tunes the learning rate."""
QUALITY, LOSS, PAYLOAD = "test quality", "loss against dense", "payload a step"
LESS, REACHED = "payload: times less than dense", "target reached"
TARGET = "modelled speedup to the target, slim model on a CPU"
"""Its ``setting`` in the frame is the network."""
WIRE = {workers: f"wire a step, N = {workers}" for workers in (2, 8, 32)}
SHOWS_THAT_IT_RUNS = "quick"
"""Nothing is concluded at this scale."""
SORTED_BY = "1 Gbit/s"
"""The network by whose speedups the figure is sorted."""
RESULTS = Path(__file__).resolve().parents[3] / "results"


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    present = [name for name in workloads() if _dense(runs, name)]
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
    found = numbers(shown)
    judged = {name: judged_of(found, name) for name in present}
    titles = {name: workloads()[name].title for name in present}
    tuning = pd.concat([_tuning(runs, name) for name in present])
    figures = _headline(found, judged, shown, scale)
    if fast := {titles[name]: rows for name in present if (rows := _fast_rows(found, name))}:
        figures["speed"] = partial(_speed_figure, found, fast, facts.caption(shown, scale))
    classes = [] if scale == SHOWS_THAT_IT_RUNS else [_classes(judged)]
    return made(
        __file__, scale, runs, found,
        [
            *(Section("What the seeds show", table) for table in classes),
            Section("Settings"),
            *(Section(titles[name], _table(found, judged[name], shown)) for name in present),
            Section("Modelled time"),
            Section("Tuning", tuning if len(tuning) else None),
        ],
        head=[
            ("training", "; ".join(_training(_dense(runs, name)[0]) for name in present)),
            ("seconds", "modelled, from times of these runs: see Modelled time"),
        ],
        said={
            "shows": "\n\n".join(_shows(one) for one in judged.values()),
            "priors": "; ".join(f"{titles[name]} {one.prior_text}" for name, one in judged.items()),
            "workers": speed.WORKERS,
            "seeds": MIN_SEEDS,
            "settings": len({run.method for run in shown}),
            "workloads": "; ".join(titles.values()),
            "twins": ", ".join(f"{row} as {first}" for row, first in frame.twins(shown).items()) or "none",
        },
        figures=figures,
    )  # fmt: skip


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: quality, loss against dense, bytes and modelled speedups of each row
    ``<workload>.<setting>``. Seeds whose dense training is missing or diverged are left out."""
    return frame.join(*(_numbers_of(runs, name) for name in workloads()))


def _numbers_of(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """The frame of one workload."""
    dense = {run.seed: run for run in _dense(runs, name)}
    own = [run for run in runs if run.model == name and run.seed in dense]
    work = speed.Workload(own)
    fast = {seed: run for seed, run in dense.items() if np.isfinite(speed.steps_to_target(run))}
    late = {run.row for run in own if run.seed in fast and not _reaches(run)}

    def speedup(run: Run, network: str) -> float:
        """Seconds of dense training to the target over the run's; NaN where a seed misses it."""
        if run.seed not in fast or run.row in late:
            return np.nan
        needed = [
            steps * work.seconds(one, NETWORKS[network], steps)
            for one in (fast[run.seed], run)
            for steps in [speed.steps_to_target(one)]
        ]
        return needed[0] / needed[1]

    quantities: dict[str, Quantity | Relative] = {
        QUALITY: Quantity("", quality),
        LOSS: Quantity(workloads()[name].unit, lambda run: loss(run, dense[run.seed])),
        PAYLOAD: Quantity("bytes", _payload),
        REACHED: Quantity(YES_OR_NO, lambda run: _reaches(run) if run.seed in fast else np.nan),
        LESS: Relative(PAYLOAD, f"{name}.{DENSE}", inverse=True),
        **{title: Quantity("bytes", partial(wire_a_step, workers=n)) for n, title in WIRE.items()},
    }
    modelled = [
        frame.measure(
            own, {TARGET: Quantity("x", partial(speedup, network=network), "modelled")}
        ).assign(setting=network)
        for network in NETWORKS
    ]
    return frame.join(frame.measure(own, quantities), *modelled)


def _dense(runs: Sequence[Run], name: str) -> list[Run]:
    """Dense training of a workload, where it did not diverge."""
    return [run for run in runs if run.row == f"{name}.{DENSE}" and np.isfinite(quality(run))]


def quality(run: Run, split: str = "test") -> float:
    """The workload's metric in the last test. Infinite: training diverged."""
    metric = workloads()[run.model].metric
    value = run.epochs[f"{split}/{metric}"].iloc[-1]
    worst = -np.inf if metric == ACCURACY else np.inf
    return worst if pd.isna(value) else float(value)


def loss(run: Run, dense: Run) -> float:
    """What a run loses against dense training, in the unit of its workload."""
    own, base = quality(run), quality(dense)
    return base - own if workloads()[run.model].is_difference else 100 * (own / base - 1)


def _payload(run: Run) -> float:
    return run.last("comm/payload_bytes") / max(1.0, speed.exchanged(run))


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many: the run's collectives with the ring's factors."""
    calls = speed.calls_at(run, workers)
    return sum(moved_by(name, workers) * size for name, (_, size) in calls.items())


def _reaches(run: Run) -> float:
    return float(np.isfinite(speed.steps_to_target(run)))


def judged_of(found: pd.DataFrame, name: str) -> Judged:
    """What the losses of a workload's settings show: those that send the most bytes first."""
    own = found[found["row"].str.startswith(f"{name}.") & (found["quantity"] == PAYLOAD)]
    rows = (
        own.groupby("row", sort=False)["value"]
        .mean()
        .sort_values(ascending=False, kind="stable")
        .index
    )
    return judge({row: frame.of(found, LOSS, row) for row in rows}, workloads()[name])


def _settings(judged: Judged, word: str) -> list[str]:
    """The settings of a class, dense training left out."""
    named = {row.partition(".")[2]: shown.word for row, shown in judged.shown.items()}
    return [name for name, own in named.items() if own == word and name != DENSE]


def _shows(judged: Judged) -> str:
    """How many settings of a workload are of which class, in a sentence."""
    counts = {word: len(_settings(judged, word)) for word in WORDS}
    seen = sorted({shown.n for shown in judged.shown.values()})
    n = f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
    return (
        f"{judged.workload.title}, n = {n}: of {sum(counts.values())} settings {counts['equivalent']} are "
        f"shown to be equivalent to dense training, {counts['better']} better, {counts['worse']} worse; "
        f"{counts['undecided']} are undecided."
    )


def _classes(judged: Mapping[str, Judged]) -> pd.DataFrame:
    """The margin of each workload and its settings by class, most bytes first."""
    return pd.DataFrame(
        {
            "workload": one.workload.title,
            "margin": f"{one.workload.margin:g} {one.workload.unit_in_words}",
            **{word: ", ".join(_settings(one, word)) or "-" for word in WORDS[:3]},
        }
        for one in judged.values()
    )


def _table(found: pd.DataFrame, judged: Judged, runs: Sequence[Run]) -> pd.DataFrame:
    """The settings of a workload, most bytes first."""
    rows = {row: row.partition(".")[2] for row in judged.shown}
    has_target = not found[(found["quantity"] == REACHED) & found["row"].isin(rows)].empty
    columns = (
        seeds(LOSS),
        Column(judged.workload.heading, QUALITY, _or_diverged),
        Column(f"loss, {judged.workload.unit}", LOSS, partial(_or_diverged, decimals=1)),
        Column("payload", PAYLOAD, amount),
        Column("times less", LESS, lambda values: number([float(np.mean(values))], None, "x")),
        *(Column(f"wire, N={workers}", WIRE[workers], amount) for workers in WIRE),
        *([Column("target reached", REACHED, hits)] if has_target else []),
    )
    table = frame.pivot(found, rows, columns, "setting")
    rates = {run.row: f"{run.setting('optimizer.lr'):g}" for run in runs}
    table.insert(1, "rate", [rates[row] for row in rows])
    table.insert(5, "95 % interval", [one.interval for one in judged.shown.values()])
    words = ["-" if name == DENSE else judged.shown[row].word for row, name in rows.items()]
    table.insert(6, "class", words)
    return table


def _or_diverged(values: Sequence[float], decimals: int | None = None) -> str:
    diverged = sum(not np.isfinite(value) for value in values)
    return f"diverged in {diverged} of {len(values)}" if diverged else number(values, decimals)


def _training(run: Run) -> str:
    """Steps, batch, optimizer and target of a workload's dense training."""
    own = partial(run.setting, missing="?")
    target, often = (run.setting(f"stopping.{key}") for key in ("target", "every_steps"))
    return (
        f"{workloads()[run.model].title}: {run.summary['steps']} steps ({own('train.epochs')} epochs) of "
        f"{own('launch.workers')} x {own('train.batch_size')}, {facts.short(own('optimizer'))}"
        + (
            f", target {target:g}, tested every {often} steps and after each epoch"
            if target
            else ""
        )
    )


def _tuning(runs: Sequence[Run], name: str) -> pd.DataFrame:
    """Every rate that was tried, beside the one that is used: means of the last validation and the last test
    over the seeds that tried rates. The best validation of a setting is marked."""
    own = [run for run in runs if run.model == name]
    tuned = {(run.method.partition(TUNES)[0], run.seed) for run in own if TUNES in run.method}
    tried = pd.DataFrame(
        {
            "workload": workloads()[name].title,
            "setting": family,
            "learning rate": float(run.setting("optimizer.lr")),
            "used": "" if TUNES in run.method else "yes",
            "last validation": quality(run, "validation"),
            "last test": quality(run),
        }
        for run in own
        if ((family := run.method.partition(TUNES)[0]), run.seed) in tuned
    )
    if tried.empty:
        return tried
    table = tried.groupby(list(tried.columns[:4])).mean().reset_index()
    validated = table.groupby("setting")["last validation"]
    best = (
        validated.transform("max")
        if workloads()[name].is_difference
        else validated.transform("min")
    )
    is_best = table["last validation"] == best
    for column in ("last validation", "last test"):
        table[column] = [_or_diverged([value]) for value in table[column]]
    table["last validation"] += np.where(is_best, " (best)", "")
    return table.assign(**{"learning rate": table["learning rate"].map("{:g}".format)})


def _headline(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> dict[str, Callable[[], Figure]]:
    """Loss against bytes of a few named settings, where these runs have their workload."""
    own = headline.stated(judged)
    if own is None:
        return {}
    points = {
        setting: headline.Point(float(np.mean(frame.of(found, LESS, row))), shown)
        for setting in own.names
        if (shown := judged[own.workload].shown.get(row := f"{own.workload}.{setting}")) is not None
    }
    used = [run for run in runs if run.model == own.workload and run.method in points]
    return {"headline": partial(headline.figure, own, points, facts.caption(used, scale))}


def _fast_rows(found: pd.DataFrame, name: str) -> list[str]:
    """The settings of a workload that reach its target in each seed, the fastest first."""
    own = found[(found["quantity"] == TARGET) & (found["setting"] == SORTED_BY)]
    own = own[own["row"].str.startswith(f"{name}.")]
    return list(own.groupby("row")["value"].mean().sort_values(ascending=False).index)


def _speed_figure(found: pd.DataFrame, rows: Mapping[str, Sequence[str]], caption: str) -> Figure:
    """Speedup over dense training to the target: a panel a workload, settings by networks."""
    said = (
        f"{caption}; steps to the target, compute and compression of these runs; the network modelled, "
        f"{speed.WORKERS} workers; settings that reach the target in each seed, mean over the seeds; sorted "
        f"by {SORTED_BY}"
    )
    drawn = []
    for title, own in rows.items():
        cells = [[np.mean(frame.of(found, TARGET, row, net)) for net in NETWORKS] for row in own]
        heat = panels.heat_map(
            np.array(cells), [row.partition(".")[2] for row in own], list(NETWORKS),
            lambda _, value: f"{value:.{3 if value >= 100 else 2}g}",
            lambda value: max(value, 1 / value) > 8, cmap="RdBu", norm=LogNorm(1 / 32, 32),
        )  # fmt: skip
        drawn.append(panels.panel(title, heat))
    most = max(map(len, rows.values()))
    title = "Modelled time to the target, with the model that was trained: times as fast as dense"
    return plot.figure(title, said, drawn, size=(3.8, 1.6 + 0.16 * most), legend=0)
