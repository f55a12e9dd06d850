"""Every method on every workload: what its seeds show of its cost, its bytes, and modelled time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.paper import facts, frame, panels, plot
from dgc_repro.paper.artifact import described
from dgc_repro.paper.benchmark import net, paired, profiles, speed, tradeoff, tuning
from dgc_repro.paper.benchmark.classes import MEANINGS, SHOWN, UNDECIDED, WORDS, Judged, Word
from dgc_repro.paper.benchmark.equivalent import Share, calibrations, is_shortened
from dgc_repro.paper.benchmark.paired import LESS, OF_WORKLOAD, PAYLOAD, QUALITY
from dgc_repro.paper.benchmark.speed import NETWORKS
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, or_diverged, together, workloads
from dgc_repro.paper.frame import Column, Quantity, Relative, amount, number
from dgc_repro.paper.page import Drawing, Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.setting_names import is_of, name_of
from dgc_repro.paper.verdict import MIN_SEEDS

ALIKE = ("scale.name", "train.on_nonfinite")
STEPS = "steps to the target"
LOSS, TRAINING_LOSS = "loss", "training loss"
TARGET = "modelled speedup to the target, slim model on a CPU"
"""Its ``setting`` in the frame is the network."""

WIRE = {workers: f"wire a step, N = {workers}" for workers in (8, 32, 128)}
OWN_WIRE = "wire a step, N of the runs"
MOST_SHOWN = 32
"""Workers of the wire bytes in the figures *bytes*."""
BESIDE = 1.03
"""Ratio of the places of two settings with the same number of workers in the figure *workers*."""

SENT = f"wire to the target, N = {speed.WORKERS}"
"""Infinite where the target is not reached."""

SHOWS_THAT_IT_RUNS = "quick"
"""Nothing is concluded at this scale."""

SORTED_BY = "1 Gbit/s"
"""The network by whose speedups the figure is sorted."""

COMMON: Sequence[tuple[Word, Sequence[str]]] = (
    ("equivalent", ("bf16", "uniform_8", "uniform_4")),
    ("costs", ("powersgd_2", "topk_0.01", "topk_0.001")),
)
"""A class, and the well-known settings whose workloads of this class the first paragraph counts."""

NOTES: Mapping[tuple[str, ...], str] = {
    ("dgc", "onebit_adam"): (
        "the payload includes the warm-ups of DGC and the dense steps of 1-bit Adam. In a longer training "
        "their payloads approach those of sampled top-k and EF-signSGD"
    ),
    ("dgc",): (
        "DGC is the method as printed: its momentum factor masking lowers the effective learning rate of "
        "entries that are sent often (docs/dgc.md); *unmasked*: without it. On the first edition's "
        "LSTM it lacks the local clipping that its paper has for recurrent networks"
    ),
    ("diloco",): (
        "DiLoCo takes its local steps with the optimizer of the workload (its paper: AdamW); its bytes are "
        "means over local steps"
    ),
    ("gravac",): (
        "GraVAC decides for 4 workers on 1 Gbit/s and 20 ms of compute, whatever network it is shown on"
    ),
    ("scadles", "gravac"): "ScaDLES and GraVAC may choose to send everything",
    ("redsync",): "RedSync, *one mean*: places and one mean value are sent",
    ("adam", "onebit_adam", "demo", "signsgd"): (
        "Adam, 1-bit Adam, DeMo and signSGD use another optimizer: *better* and *costs* compare two "
        "trainings, not compression alone"
    ),
    ("muon", "muloco", "dion"): (
        "Muon, MuLoCo and Dion orthonormalize the updates of matrices: their costs compare optimizers too"
    ),
}
"""What a reader must know of methods, for pages that have one of them."""

WIRE_AT = (
    "*wire*: bytes that the collectives move between N workers, computed from the recorded collectives with "
    "the ring's factors (allreduce 2 (N-1) / N, allgather N-1), not measured at that N; shards are 1/N. The "
    "costs are those of the workers that trained"
)
WIRE_OF_OWN = (
    "*wire*: bytes that the collectives move between the workers of the row, computed from the recorded "
    "collectives with the ring's factors for N workers (allreduce 2 (N-1) / N, allgather N-1)"
)

ALSO = ("images", "text")
"""``experiment.artifact`` of the runs of the recipes (conf/paper/benchmark.yaml)."""


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    present = [name for name in workloads() if _dense(runs, name)]
    if not present:
        raise UserError(
            "experiment.row: dense training of a workload to compare with, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/methods`"
        )
    require_alike(runs, ALIKE)
    if any(speed.workers_of(run) < 2 for run in runs):
        raise UserError("launch.workers: at least 2, between whom something is exchanged, got 1")
    fitted = calibrations(runs, {name: workloads()[name] for name in present})
    every = [run for run in runs if run.model in present]
    runs = [run for run in every if not is_shortened(run)]
    for name in present:
        require_alike([run for run in runs if run.model == name], OF_WORKLOAD)
    shown = [run for run in runs if TUNES not in run.method]
    same = frame.twins(shown)
    shown = [run for run in shown if run.row not in same]
    differ_in_workers = len({_workers(runs, name) for name in present}) > 1
    found = numbers(shown, None if differ_in_workers else speed.WORKERS)
    judged = {name: judged_of(shown, name) for name in present}
    titles = {name: workloads()[name].title for name in present}
    shares = {
        name: one.shares([run for run in shown if run.model == name])
        for name, one in fitted.items()
    }
    rates = pd.concat([tuning.every_rate(runs, name) for name in present])
    tuned = pd.DataFrame(line for name in present for line in tuning.best_rates(runs, name))
    is_quick = scale == SHOWS_THAT_IT_RUNS
    among = "as many workers as trained" if differ_in_workers else f"{speed.WORKERS} workers"
    ways = {"wire": OWN_WIRE} if differ_in_workers else {f"wire, N={n}": WIRE[n] for n in WIRE}
    methods = sorted({run.method for run in shown})
    figures: dict[str, Drawing] = {}
    if differ_in_workers:
        figures["workers"] = _workers_figure(found, judged, shown, scale)
    else:
        figures |= _headline(found, judged, shown, scale)
        for name, one in judged.items():
            own = [run for run in shown if run.model == name]
            figures[f"bytes_{name}"] = _bytes_figure(found, one, own, scale)
    for name, of_name in shares.items():
        own = [run for run in shown if run.model == name]
        if drawing := net.figure(own, workloads()[name], of_name, scale):
            figures["net"] = drawing
    timed = [name for name in present if not _on_gpu(runs, name)]
    if fast := {titles[name]: rows for name in timed if (rows := _fast_rows(found, judged[name]))}:
        used = [run for run in shown if run.model in timed]
        figures["speed"] = _speed_figure(found, fast, used, scale, among)
    classes = [] if is_quick else [_classes(judged)]
    scores = None if is_quick or differ_in_workers else _scores(found, present)
    return made(
        __file__, scale, every, found,
        [
            *(Section("What the seeds show", table) for table in classes),
            Section("Settings"),
            *(
                Section(titles[name], _table(found, judged[name], shown, ways, same))
                for name in present
            ),
            *([Section("Equivalent steps", _equivalent(shown, shares))] if shares else []),
            *([] if scores is None else [Section("Score", scores)]),
            Section("Modelled time"),
            *([Section("Tuning", tuned), Section("All rates", rates)] if len(rates) else []),
            Section("How the classes were found"),
        ],
        head=[
            ("training", "; ".join(_training(_dense(runs, name)[0]) for name in present)),
            ("seconds", "modelled, from times of these runs: see Modelled time"),
        ],
        said={
            "common": _common(judged),
            "classes": "\n".join(f"- *{word}*: {what}" for word, what in MEANINGS.items()),
            "spread": "\n".join(f"- {one.spread_text}" for one in judged.values()),
            "families": "\n".join(f"- {text}" for one in judged.values() for text in _families(one)),
            "kinds": "\n".join(f"- {_kinds(shown, one)}" for one in judged.values()),
            "looks": _looks(shown, judged),
            "workers": speed.WORKERS,
            "among": among,
            "largest": f"{profiles.LARGEST:g}",
            "targets": "; ".join(_target(name, shown) for name in present),
            "seeds": MIN_SEEDS,
            "notes": "".join(f"- {text}\n" for text in _notes(methods)),
            "wire": WIRE_OF_OWN if differ_in_workers else WIRE_AT,
            "subject": "quality, bytes and time"
            + (" by the number of workers" if differ_in_workers else ""),
            "twins": "; ".join(_twins(same)) or "none",
        },
        figures=figures,
    )  # fmt: skip


class Worth(NamedTuple):
    """A setting's cost in percent of the steps, and its net speedups by network ("-" where none is modelled),
    in words."""

    steps: str
    net: Mapping[str, str]


def worth(runs: Sequence[Run], shares: Mapping[str, Share]) -> dict[str, Worth]:
    """What the settings of a workload's runs are worth, the smallest share of the steps first."""
    work = speed.Workload(runs)
    model = net.full_size(workloads()[runs[0].model])
    faster = {
        title: net.step_speedups(work, model, network) if model else {}
        for title, network in NETWORKS.items()
    }
    return {
        method: Worth(
            share.text,
            {
                title: share.net_text(of[method]) if method in of else "-"
                for title, of in faster.items()
            },
        )
        for method, share in sorted(shares.items(), key=lambda item: (item[1].mean, item[1].low))
    }


def _equivalent(runs: Sequence[Run], shares: Mapping[str, Mapping[str, Share]]) -> pd.DataFrame:
    """The settings with the share of the steps that they cost, and the net speedups of the full-size model on
    each network, where there is one."""
    return pd.DataFrame(
        {
            "workload": workloads()[name].title,
            "setting": name_of(method),
            "% of the steps": one.steps,
            **one.net,
        }
        for name, of_name in shares.items()
        for method, one in worth([run for run in runs if run.model == name], of_name).items()
    )


def _twins(same: Mapping[str, str]) -> list[str]:
    """The settings that trained exactly as another one, with their workloads."""
    pairs = [(row.split(".", 1), first.split(".", 1)) for row, first in same.items()]
    return [
        f"{name_of(setting)} as {name_of(first)} ({workloads()[name].title})"
        for (name, setting), (_, first) in pairs
    ]


def numbers(runs: Sequence[Run], workers: int | None = speed.WORKERS) -> pd.DataFrame:
    """The frame: quality, cost against dense, bytes and modelled speedups of each row
    ``<workload>.<setting>``. Runs without dense training to compare with are left out. ``workers``:
    among how many times are modelled; None: among those that trained."""
    return frame.join(*(_numbers_of(runs, name, workers) for name in workloads()))


def _numbers_of(runs: Sequence[Run], name: str, workers: int | None) -> pd.DataFrame:
    """The frame of one workload."""
    own, reference = paired.with_reference(
        [run for run in runs if run.model == name], f"{name}.{DENSE}", workloads()[name]
    )
    dense = reference.by_seed
    work = speed.Workload(own)
    steps = workloads()[name].steps_to_target
    fast = {seed: run for seed, run in dense.items() if np.isfinite(steps(run))}
    late = {run.row for run in own if run.seed in fast and not np.isfinite(steps(run))}

    def speedup(run: Run, network: str) -> float:
        """Seconds of dense training to the target over the run's; NaN where a seed misses it."""
        if run.seed not in fast or run.row in late:
            return np.nan
        needed = [
            number * work.seconds(one, NETWORKS[network], number, workers or speed.workers_of(run))
            for one in (fast[run.seed], run)
            for number in [steps(one)]
        ]
        return needed[0] / needed[1]

    by_accuracy = workloads()[name].is_difference
    quantities: dict[str, Quantity | Relative] = {
        **paired.quantities(reference),
        **({LOSS: Quantity("nats", partial(together, metric="loss"))} if by_accuracy else {}),
        TRAINING_LOSS: Quantity("nats", lambda run: run.last("train/loss")),
        STEPS: Quantity("steps", steps),
        SENT: Quantity("bytes", lambda run: wire_until(run, speed.WORKERS, steps(run))),
        **{title: Quantity("bytes", partial(wire_a_step, workers=n)) for n, title in WIRE.items()},
        OWN_WIRE: Quantity("bytes", lambda run: wire_a_step(run, speed.workers_of(run))),
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
    own = [run for run in runs if run.row == f"{name}.{DENSE}"]
    return [run for run in own if np.isfinite(workloads()[name].quality(run))]


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many in an exchanged step, in the mean over the run: the run's
    collectives with the ring's factors."""
    calls = speed.calls_at(run, workers)
    return sum(moved_by(name, workers) * size for name, (_, size) in calls.items())


def wire_until(run: Run, workers: int, step: float) -> float:
    """Bytes that a worker would send among so many in the first steps: the share that these steps have of the
    run's own wire bytes, of all that it would send. Infinite or NaN if ``step`` is."""
    if not np.isfinite(step):
        return step
    ends, sent = (run.epochs[name].to_numpy(float) for name in ("step", "comm/wire_bytes"))
    share = np.interp(step, [0.0, *ends], [0.0, *sent]) / (sent[-1] or 1.0)
    return float(share * wire_a_step(run, workers) * speed.exchanged(run))


def judged_of(runs: Sequence[Run], name: str) -> Judged:
    """What the costs of a workload's settings show: those that send the most bytes first."""
    workload = workloads()[name]
    own, dense = paired.with_reference(
        [run for run in runs if run.model == name], f"{name}.{DENSE}", workload
    )
    families = [[f"{name}.{setting}" for setting in one.rows] for one in workload.families]
    return paired.judged(own, dense, families or None)


def _settings(judged: Judged, word: Word) -> list[str]:
    """The names of the settings of a class, dense training left out."""
    found = judged.settings.items()
    return [name_of(name) for name, own in found if own.word == word and name != DENSE]


def _common(judged: Mapping[str, Judged]) -> str:
    """On how many workloads well-known settings have a class."""
    told = []
    for word, settings in COMMON:
        counts: list[str] = []
        for setting in settings:
            shown = [
                own.word
                for one in judged.values()
                if (own := one.settings.get(setting)) and own.n >= MIN_SEEDS
            ]
            if shown:
                noun = f" workload{'s' * (len(shown) > 1)}" * (not counts)
                counts.append(f"{name_of(setting)} on {shown.count(word)} of {len(shown)}{noun}")
        if counts:
            told.append(f"*{word.capitalize()}*: {'; '.join(counts)}.")
    return " ".join(told)


def _families(judged: Judged) -> list[str]:
    """The families of a workload, in sentences."""
    workload = judged.workload
    if not workload.families:
        return [f"{workload.title}: the settings of this page, none fixed before their runs."]
    return [
        f"{workload.title}, {len(one.rows)} settings, fixed on {one.date}. Planned seeds: {one.seeds}."
        for one in workload.families
    ]


def _kinds(runs: Sequence[Run], judged: Judged) -> str:
    """How many runs of a workload each kind of processor trained, of dense training and of others."""
    name = judged.reference.partition(".")[0]
    own = Counter(
        (run.processor or "not recorded", run.method == DENSE) for run in runs if run.model == name
    )
    kinds = sorted({kind for kind, _ in own})
    return f"{judged.workload.title}: " + "; ".join(
        f"{kind} ({own[kind, True]} of dense training, {own[kind, False]} of other settings)"
        for kind in kinds
    )


def _looks(runs: Sequence[Run], judged: Mapping[str, Judged]) -> str:
    """What the first three seeds alone show of the settings that have more: the class that the page would
    have had before the others were trained."""
    early = [run for run in runs if run.seed < MIN_SEEDS]
    found = []
    for name, one in judged.items():
        if not _dense(early, name):
            continue
        before = judged_of(early, name).shown
        moved = [
            f"{name_of(row.partition('.')[2])} {before[row].word} ({before[row].interval})"
            for row, shown in one.shown.items()
            if row != one.reference
            and row in before
            and before[row].n < shown.n
            and before[row].word != shown.word
        ]
        if moved:
            found.append(f"- {one.workload.title}: {'; '.join(moved)}.")
    return "\n".join(found) or "- None has another class with more seeds."


def _classes(judged: Mapping[str, Judged]) -> pd.DataFrame:
    """The margin of each workload and its settings by class, most bytes first."""
    table: list[dict[str, str]] = []
    for one in judged.values():
        by_class = {word: _settings(one, word) for word in WORDS}
        found = sum(len(names) for word, names in by_class.items() if word != UNDECIDED)
        kept = sum(shown.survives or False for shown in one.shown.values())
        table.append(
            {
                "workload": one.workload.title,
                "margin": f"{one.workload.margin:g} {one.workload.unit_in_words}",
                **{
                    str(word): f"{len(by_class[word])}: {'; '.join(by_class[word])}".removesuffix(
                        ": "
                    )
                    for word in SHOWN
                },
                UNDECIDED: str(len(by_class[UNDECIDED])),
                "in the family": f"{kept} of {found}",
            }
        )
    return pd.DataFrame(table)


def _notes(settings: Sequence[str]) -> list[str]:
    """The notes on the methods of these settings."""
    return [
        text
        for methods, text in NOTES.items()
        if any(is_of(setting, method) for setting in settings for method in methods)
    ]


def _table(
    found: pd.DataFrame,
    judged: Judged,
    runs: Sequence[Run],
    ways: Mapping[str, str],
    same: Mapping[str, str],
) -> pd.DataFrame:
    """The settings of a workload, most bytes first. ``ways``: quantities of wire bytes by heading; ``same``:
    rows that are the training of another one, whose name stands beside it."""
    rows = {row: row.partition(".")[2] for row in judged.shown}
    has_target = not found[(found["quantity"] == STEPS) & found["row"].isin(rows)].empty
    columns = (
        Column(judged.workload.heading, QUALITY, or_diverged),
        *([Column(LOSS, LOSS, 3)] if judged.workload.is_difference else []),
        Column(TRAINING_LOSS, TRAINING_LOSS, 3),
        Column("payload", PAYLOAD, amount),
        Column("times less", LESS, lambda values: number([float(np.mean(values))], None, "x")),
        *(Column(heading, way, amount) for heading, way in ways.items()),
        *(
            [Column(STEPS, STEPS, partial(or_diverged, decimals=0, word="missed"))]
            if has_target
            else []
        ),
    )
    twins = {first: row.partition(".")[2] for row, first in same.items()}
    named = {
        row: name_of(setting) + (f" = {name_of(twins[row])}" if row in twins else "")
        for row, setting in rows.items()
    }
    table = frame.pivot(found, named, columns, "setting")
    own = {row: [run for run in runs if run.row == row] for row in rows}
    rates = [f"{own[row][-1].setting('optimizer.lr'):g}" for row in rows]
    table.insert(1, "rate", rates)
    table.insert(2, "rate of a step", [tuning.recorded(own[row]) for row in rows])
    shown = judged.shown.values()
    table.insert(3, "n", [str(one.n) for one in shown])
    table.insert(5, f"cost, {judged.workload.unit}", [one.cost for one in shown])
    table.insert(6, "95 % interval", [one.interval for one in shown])
    words = ["-" if name == DENSE else judged.shown[row].word for row, name in rows.items()]
    table.insert(7, "class", words)
    table.insert(8, "in the family", [one.family for one in shown])
    return table


def _training(run: Run) -> str:
    """Steps, batch, optimizer and target of a workload's dense training."""
    own = partial(run.setting, missing="?")
    target, often = (run.setting(f"stopping.{key}") for key in ("target", "every_steps"))
    return (
        f"{workloads()[run.model].title}: {run.summary['steps']} steps ({own('train.epochs')} epochs) of "
        f"{own('launch.workers')} x {own('train.batch_size')}, {facts.short(own('optimizer'))}"
        + (
            f", target {target:g}, tested every {often} steps and after each epoch"
            if target and often
            else ", tested after each epoch"
        )
    )


def _target(name: str, runs: Sequence[Run]) -> str:
    """The target of a workload in words, and how many of the runs that come to it do so at the last test."""
    one = workloads()[name]
    own = [run for run in runs if run.model == name]
    target = own[0].setting("stopping.target") if one.target is None else one.target
    if target is None:
        return f"{one.title} none"
    steps = [(one.steps_to_target(run), run.summary["steps"]) for run in own]
    there = [step == last for step, last in steps if np.isfinite(step)]
    unit = " %" if one.is_difference else ""
    return (
        f"{one.title} {target:g}{unit} ({sum(there)} of the {len(there)} runs that come to it do so at their "
        "last test)"
    )


def _scores(found: pd.DataFrame, present: Sequence[str]) -> pd.DataFrame | None:
    """Each setting's bytes to the targets, and its score, the best first: rows with enough seeds to conclude.
    None for fewer than two workloads with a target."""
    costs: dict[str, dict[str, float]] = {}
    for row, own in found[found["quantity"] == SENT].groupby("row", sort=False)["value"]:
        name, _, setting = str(row).partition(".")
        if len(own) >= MIN_SEEDS:
            costs.setdefault(setting, {})[name] = float(own.mean())
    names = [name for name in present if any(name in one for one in costs.values())]
    if len(names) < 2:
        return None
    ratios = profiles.ratios(costs)
    scores = {setting: profiles.score(ratios[setting]) for setting in ratios}
    ordered = sorted(scores, key=lambda setting: -scores[setting])
    table: dict[str, list[str]] = {"setting": [*map(name_of, ordered)]}
    for name in names:
        cells = [costs[setting][name] for setting in ordered]
        table[workloads()[name].title] = [
            amount([cell]) if np.isfinite(cell) else "missed" for cell in cells
        ]
    return pd.DataFrame(table | {"score": [f"{scores[setting]:.2f}" for setting in ordered]})


def _headline(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> dict[str, Drawing]:
    """Describe the figure of a few named settings, where these runs have their workload."""
    own = tradeoff.stated(judged)
    if own is None:
        return {}
    points = {
        setting: tradeoff.Point(
            float(np.mean(frame.of(found, LESS, f"{own.workload}.{setting}"))), shown
        )
        for setting in own.names
        if (shown := judged[own.workload].settings.get(setting)) is not None
    }
    used = [run for run in runs if run.model == own.workload and run.method in points]
    return {"headline": tradeoff.picture(own, points, used, scale)}


def _bytes_figure(found: pd.DataFrame, judged: Judged, runs: Sequence[Run], scale: str) -> Drawing:
    """Describe the figure of all settings of a workload: cost against payload, and against wire bytes."""
    ways = {"payload": PAYLOAD, f"wire, {MOST_SHOWN} workers": WIRE[MOST_SHOWN]}
    several = {}
    for title, way in ways.items():
        sent = {row: float(np.mean(frame.of(found, way, row))) for row in judged.shown}
        dense = next(size for row, size in sent.items() if row.endswith(f".{DENSE}"))
        several[title] = {
            setting: tradeoff.Point(dense / size if size else np.inf, shown)
            for (setting, shown), size in zip(judged.settings.items(), sent.values(), strict=True)
        }
    return tradeoff.figure(judged.workload, several, runs, scale)


def _workers(runs: Sequence[Run], name: str) -> int:
    """The number of workers that train a workload."""
    return speed.workers_of(next(run for run in runs if run.model == name))


def _workers_figure(
    found: pd.DataFrame, judged: Mapping[str, Judged], runs: Sequence[Run], scale: str
) -> Drawing:
    """Describe the figure of cost and wire bytes of the settings of several workloads, by workers."""
    numbers = {name: _workers(runs, name) for name in judged}
    judged = {name: judged[name] for name in sorted(judged, key=lambda name: numbers[name])}
    numbers = {name: numbers[name] for name in judged}
    counted = Counter(setting for one in judged.values() for setting in one.settings)
    settings = [setting for setting, count in counted.items() if count > 1]
    used = [run for run in runs if run.method in settings]
    first, ticks = next(iter(judged.values())).workload, list(numbers.values())
    unit = first.unit_in_words

    def costs(axes: Axes) -> None:
        axes.axhspan(-first.margin, first.margin, color="#EDEDED", zorder=0)
        for place, setting in enumerate(settings):
            aside, look = BESIDE ** (place - len(settings) / 2), _look(setting, place)
            for name, one in judged.items():
                if (shown := one.settings.get(setting)) is None:
                    continue
                axes.errorbar(
                    aside * numbers[name], shown.mean, yerr=np.array([shown.bars]).T, **look,
                    markerfacecolor=look["color"] if shown.n >= MIN_SEEDS else "white", linestyle="",
                )  # fmt: skip
                look = {**look, "label": None}

    def sent(axes: Axes) -> None:
        for place, setting in enumerate(settings):
            own = [name for name, one in judged.items() if setting in one.settings]
            means = [np.mean(frame.of(found, OWN_WIRE, f"{name}.{setting}")) for name in own]
            axes.plot(
                [numbers[name] for name in own], np.divide(means, 1e6), **_look(setting, place)
            )

    def parts() -> plot.Panels:
        return [
            panels.panel("cost", costs, x="workers", y=f"cost, {unit}", log="x", xticks=ticks),
            panels.panel("wire", sent, x="workers", y="MB a step and worker", log="xy", xticks=ticks),
        ]  # fmt: skip

    note = (
        "The figure has the settings of more than one number of workers. All train with one global batch, "
        f"the same number of steps and the same rate. Hollow points have fewer than {MIN_SEEDS} seeds. Bars "
        f"are 95 % intervals, where there is one. The grey band has costs of at most "
        f"±{first.margin:g} {unit}."
    )
    title = "Cost and bytes by the number of workers, at one global batch"
    return described(title, note, used, scale, parts, size=(5.2, 3.8), legend=len(settings))


def _look(setting: str, place: int) -> dict[str, Any]:
    return {
        "color": tradeoff.colour_of(setting), "marker": plot.MARKERS[place % len(plot.MARKERS)],
        "label": name_of(setting), "markersize": 5,
    }  # fmt: skip


def _on_gpu(runs: Sequence[Run], name: str) -> bool:
    """Whether runs of a workload trained on a GPU. Other runs shared it, and nothing says how many."""
    return any(run.environment.get("device") == "cuda" for run in runs if run.model == name)


def _fast_rows(found: pd.DataFrame, judged: Judged) -> list[str]:
    """The settings of a workload that reach its target in each seed and that no other one of these beats, on
    one of the networks, in both speed and mean cost; and dense training. The fastest first."""
    own = found[(found["quantity"] == TARGET) & found["row"].isin(judged.shown)]
    speeds = own.groupby(["setting", "row"])["value"].mean()
    kept: set[str] = set()
    for network in NETWORKS:
        if network in speeds:
            of = {
                str(row): tradeoff.Point(float(x), judged.shown[str(row)])
                for row, x in speeds[network].items()
            }
            kept |= {*tradeoff.front(of), *(row for row in of if row.endswith(f".{DENSE}"))}
    if SORTED_BY not in speeds:
        return []
    ordered = speeds[SORTED_BY].sort_values(ascending=False, kind="stable").index
    return [str(row) for row in ordered if row in kept]


def _speed_figure(
    found: pd.DataFrame, rows: Mapping[str, Sequence[str]], runs: Sequence[Run], scale: str, among: str
) -> Drawing:  # fmt: skip
    """Describe the figure of the speedup over dense training to the target: a panel a workload, settings by
    networks."""

    def parts() -> plot.Panels:
        drawn = []
        for title, own in rows.items():
            cells = [
                [np.mean(frame.of(found, TARGET, row, net)) for net in NETWORKS] for row in own
            ]
            heat = panels.heat_map(
                np.array(cells), [name_of(row.partition(".")[2]) for row in own], list(NETWORKS),
                lambda _, value: f"{value:.{3 if value >= 100 else 2}g}",
                lambda value: max(value, 1 / value) > 8, cmap="RdBu", norm=LogNorm(1 / 32, 32),
            )  # fmt: skip
            drawn.append(panels.panel(title, heat))
        return drawn

    note = (
        f"Cells have the mean over the seeds, sorted by {SORTED_BY}. The steps to the target, compute and "
        f"compression are those of these runs; the network is modelled, with {among}. The figure has "
        "training without compression, and of the settings that reach the target in each seed those that no "
        "other one beats in both speed and mean cost on one of the networks; numbers.csv has them all."
    )
    most = max(map(len, rows.values()))
    return described(
        "Modelled time to the target: times as fast as training without compression", note, runs, scale,
        parts, size=(4.4, 1.5 + 0.24 * most), legend=0,
    )  # fmt: skip
