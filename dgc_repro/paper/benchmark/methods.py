"""Every method on every workload: what its seeds show of its cost, its bytes, and modelled time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, frame
from dgc_repro.paper.artifact import Artifact
from dgc_repro.paper.benchmark import ALIKE, figures, net, paired, profiles, speed, tuning
from dgc_repro.paper.benchmark.classes import MEANINGS, SHOWN, UNDECIDED, WORDS, Judged, Word
from dgc_repro.paper.benchmark.equivalent import calibrations, is_shortened
from dgc_repro.paper.benchmark.paired import LOSS, OWN_WIRE, STEPS, TRAINING_LOSS, WIRE
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, or_diverged, workloads
from dgc_repro.paper.frame import Column, amount, number
from dgc_repro.paper.page import Drawing, Page
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.setting_names import is_of, name_of
from dgc_repro.paper.verdict import MIN_SEEDS

ALSO = ("images", "text")
"""``experiment.artifact`` of the runs of the recipes (conf/paper/benchmark.yaml)."""
SHOWS_THAT_IT_RUNS = "quick"
"""Nothing is concluded at this scale."""

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


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    dense = {name: own[0] for name in workloads() if (own := _dense(runs, name))}
    if not dense:
        raise UserError(
            "experiment.row: dense training of a workload to compare with, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/methods`"
        )
    require_alike(runs, ALIKE)
    if any(speed.workers_of(run) < 2 for run in runs):
        raise UserError("launch.workers: at least 2, between whom something is exchanged, got 1")
    every = [run for run in runs if run.model in dense]
    runs = [run for run in every if not is_shortened(run)]
    for name in dense:
        require_alike([run for run in runs if run.model == name], paired.OF_WORKLOAD)
    shown = [run for run in runs if TUNES not in run.method]
    same = frame.twins(shown)
    shown = [run for run in shown if run.row not in same]
    by_name = {name: [run for run in shown if run.model == name] for name in dense}
    titles = {name: workloads()[name].title for name in dense}
    differ_in_workers = len({speed.workers_of(run) for run in dense.values()}) > 1
    found = paired.numbers(shown, None if differ_in_workers else speed.WORKERS)
    judged = {name: paired.judged_of(shown, name) for name in dense}
    fitted = calibrations(every, {name: workloads()[name] for name in dense})
    shares = {name: one.shares(by_name[name]) for name, one in fitted.items()}
    rates = pd.concat([tuning.every_rate(runs, name) for name in dense])
    tuned = pd.DataFrame(line for name in dense for line in tuning.best_rates(runs, name))
    is_quick = scale == SHOWS_THAT_IT_RUNS
    among = "as many workers as trained" if differ_in_workers else f"{speed.WORKERS} workers"
    ways = {"wire": OWN_WIRE} if differ_in_workers else {f"wire, N={n}": WIRE[n] for n in WIRE}
    methods = sorted({run.method for run in shown})
    drawn: dict[str, Drawing] = {}
    if differ_in_workers:
        drawn["workers"] = figures.of_workers(found, judged, shown, scale)
    else:
        drawn |= figures.headline(found, judged, shown, scale)
        for name, one in judged.items():
            drawn[f"bytes_{name}"] = figures.of_bytes(found, one, by_name[name], scale)
    for name, of_name in shares.items():
        if drawing := net.figure(by_name[name], workloads()[name], of_name, scale):
            drawn["net"] = drawing
    # Other runs shared a GPU, and nothing says how many.
    timed = [name for name in dense if all(not run.is_on_gpu for run in runs if run.model == name)]
    fast = {titles[name]: figures.fast_rows(found, judged[name]) for name in timed}
    if fast := {title: rows for title, rows in fast.items() if rows}:
        used = [run for run in shown if run.model in timed]
        drawn["speed"] = figures.of_speed(found, fast, used, scale, among)
    scores = None if is_quick or differ_in_workers else profiles.table(found, list(dense))
    said = {
        "common": _common(judged),
        "classes": "\n".join(f"- *{word}*: {what}" for word, what in MEANINGS.items()),
        "spread": "\n".join(f"- {one.spread_text}" for one in judged.values()),
        "families": "\n".join(f"- {text}" for one in judged.values() for text in _families(one)),
        "kinds": "\n".join(f"- {_kinds(by_name[name], one)}" for name, one in judged.items()),
        "looks": _looks(shown, judged),
        "workers": speed.WORKERS,
        "among": among,
        "largest": f"{profiles.LARGEST:g}",
        "targets": "; ".join(_target(name, by_name[name]) for name in dense),
        "seeds": MIN_SEEDS,
        "notes": "".join(f"- {text}\n" for text in _notes(methods)),
        "wire": WIRE_OF_OWN if differ_in_workers else WIRE_AT,
        "subject": "quality, bytes and time" + " by the number of workers" * differ_in_workers,
        "twins": "; ".join(_twins(same)) or "none",
    }
    made = Artifact(
        __file__,
        rows={},
        numbers=lambda _: found,
        tables={
            **({} if is_quick else {"What the seeds show": _classes(judged)}),
            "Settings": (),
            **{titles[name]: _table(found, judged[name], shown, ways, same) for name in dense},
            **({"Equivalent steps": net.worth_table(by_name, shares)} if shares else {}),
            **({} if scores is None else {"Score": scores}),
            "Modelled time": (),
            **({"Tuning": tuned, "All rates": rates} if len(rates) else {}),
            "How the classes were found": (),
        },
        head=lambda _: [
            ("training", "; ".join(map(_training, dense.values()))),
            ("seconds", "modelled, from times of these runs: see Modelled time"),
        ],
        said=lambda _: said,
        figures=drawn,
        alike=(),
    )
    return made(every, scale)


def _twins(same: Mapping[str, str]) -> list[str]:
    """The settings that trained exactly as another one, with their workloads."""
    pairs = [(row.split(".", 1), first.split(".", 1)) for row, first in same.items()]
    return [
        f"{name_of(setting)} as {name_of(first)} ({workloads()[name].title})"
        for (name, setting), (_, first) in pairs
    ]


def _dense(runs: Sequence[Run], name: str) -> list[Run]:
    """Dense training of a workload, where it did not diverge."""
    own = [run for run in runs if run.row == f"{name}.{DENSE}"]
    return [run for run in own if np.isfinite(workloads()[name].quality(run))]


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
    workload = judged.workload
    if not workload.families:
        return [f"{workload.title}: the settings of this page, none fixed before their runs."]
    return [
        f"{workload.title}, {len(one.rows)} settings, fixed on {one.date}. Planned seeds: {one.seeds}."
        for one in workload.families
    ]


def _kinds(runs: Sequence[Run], judged: Judged) -> str:
    """How many runs of a workload each kind of processor trained, of dense training and of others."""
    own = Counter((run.processor or "not recorded", run.method == DENSE) for run in runs)
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
        before = paired.judged_of(early, name).shown
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
        Column(judged.workload.heading, paired.QUALITY, or_diverged),
        *([Column(LOSS, LOSS, 3)] if judged.workload.is_difference else []),
        Column(TRAINING_LOSS, TRAINING_LOSS, 3),
        Column("payload", paired.PAYLOAD, amount),
        Column(
            "times less", paired.LESS, lambda values: number([float(np.mean(values))], None, "x")
        ),
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
    target = runs[0].setting("stopping.target") if one.target is None else one.target
    if target is None:
        return f"{one.title} none"
    steps = [(one.steps_to_target(run), run.summary["steps"]) for run in runs]
    there = [step == last for step, last in steps if np.isfinite(step)]
    unit = " %" if one.is_difference else ""
    return (
        f"{one.title} {target:g}{unit} ({sum(there)} of the {len(there)} runs that come to it do so at their "
        "last test)"
    )
