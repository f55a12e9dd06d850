"""``recommend``: which setting to use for a model on a network, at most so much worse than dense training.

``python -m dgc_repro recommend network=ethernet_1gbit workers=8 model=resnet101 max_loss=0.5``. The loss of
quality is that of the published benchmark (results/benchmark), whose models are slim: of another model it is
an extrapolation. Settings that lose no more in the mean are put in the order of a rough estimate, those
whose seeds show it (paper/benchmark/classes.py) before the undecided ones; the first ones, and dense
training, are then measured on this machine with the user's own model (step_timing.py). What is on the network
is modelled, by the profile that is named (``calibrate`` measures one). An undecided setting is never the
answer; one that is faster than the answer is named beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch import cli_args
from dgc_repro.launch.build import SECTIONS, validate
from dgc_repro.launch.components import settled
from dgc_repro.launch.measure import parameters, unallocated
from dgc_repro.launch.networks import costs
from dgc_repro.launch.overrides import apart, composed
from dgc_repro.launch.paths import option, options
from dgc_repro.network.cost import Costs
from dgc_repro.network.iteration import seconds
from dgc_repro.paper import facts
from dgc_repro.paper.benchmark import methods, speed
from dgc_repro.paper.benchmark.classes import Judged, Shown
from dgc_repro.paper.page import console_of_width, grid
from dgc_repro.paper.records import Run
from dgc_repro.predict.prediction import (
    DENSE,
    METHOD_KEYS,
    SECONDS_PER_PARAMETER,
    Prediction,
    Predictions,
    network_of,
    network_title,
)
from dgc_repro.predict.quality import POOL, Benchmark
from dgc_repro.predict.show import head
from dgc_repro.predict.step_timing import Bench, as_simulated
from dgc_repro.progress import Progress, announce

UNDECIDED = " ?"
"""After a loss that is not shown to be at most the allowed one."""
METHOD = ("compressor", "wrap", "wrapper", "policy")
REPEATS = 3
KEYS: cli_args.Keys = {
    "workers": (cli_args.count, 8),
    "max_loss": (cli_args.from_zero, 0.5),
    "measured": (cli_args.count, 3),
    "times": (cli_args.some_text, None),
}


@dataclass(frozen=True)
class Setting:
    """A setting of the benchmark. ``loss``: what its seeds show; ``is_shown``: they show that it is at most
    the allowed one; ``estimate``: seconds of its exchange, roughly; ``config``: of the user's run with this
    setting."""

    name: str
    loss: Shown
    is_shown: bool
    estimate: float
    config: dict[str, Any]
    run: Run


def recommend(arguments: Sequence[str]) -> None:
    """Answer on the terminal. Raises UserError."""
    settings, overrides = cli_args.read(arguments, "recommend", KEYS, SECTIONS)
    overrides = cli_args.full_size(overrides)
    if given := apart(overrides, *METHOD_KEYS)[0]:
        raise UserError(f"{given[0]}: recommend chooses the method; leave it out, or use predict")
    config = composed([*overrides, *DENSE])
    network, workers = network_of(config), settings["workers"]
    if workers < 2:
        raise UserError("workers: at least 2, between whom something is exchanged, got 1")
    among = costs(network, workers)
    validate(as_simulated(config, 2))
    benchmark = Benchmark(str(config["model"]["_target_"]).rpartition(".")[2])
    runs, found = benchmark.runs, benchmark.frame
    if found is None:
        raise UserError(
            f"model: results/{POOL} has no runs of its workload {benchmark.workload}; use predict"
        )
    assert benchmark.dense is not None, "it has a frame"
    trained, given_optimizer = map(_optimizer_name, (benchmark.dense.config, config))
    if trained != given_optimizer:
        raise UserError(
            f"optimizer: the losses of results/{POOL} are of training with {trained}, not {given_optimizer}; "
            f"use optimizer={trained}, or predict for times alone"
        )
    judged = methods.judged_of(found, benchmark.workload)
    every, left_out = candidates(runs, judged, settings["max_loss"], config, among)
    good = [one for one in every if one.is_shown or one.loss.mean <= settings["max_loss"]]
    good.sort(key=lambda one: (not one.is_shown, one.estimate))

    bench = Bench(config, Path(settings["times"]) if settings["times"] else None, REPEATS)
    table = Predictions(bench, config, None, benchmark)
    each = parameters(config) * SECONDS_PER_PARAMETER * REPEATS * 2
    shown = good[: settings["measured"]]
    announce("recommend", each * (len(shown) + 1))
    rows: list[tuple[Setting | None, Prediction]] = []
    with Progress("recommend", each * (len(shown) + 1)) as progress:
        for setting in (None, *shown):
            name = setting.name if setting else methods.DENSE
            own = setting.config if setting else config
            rows += [(setting, row) for row in table.rows(name, own, {workers: among})]
            progress.advance(each, f"{name} done")
    rows.sort(key=lambda pair: pair[1].best_ms)
    about = bench.times.about | {
        "network": f"{network_title(network, overrides)}, {workers} workers",
        "source": network.source,
        "compute": "measured",
    }
    _show(rows, about, settings["max_loss"], runs, judged)
    rest = ", ".join(one.name for one in good[settings["measured"] :]) or "none"
    print(f"undecided, or slower by a rough estimate, not measured: {rest}")
    print(f"mean loss above {settings['max_loss']:g}: {len(every) - len(good)} settings")
    others = ", ".join(left_out) or "none"
    print(f"left out (another optimizer, or a setting that changes with the steps): {others}")


def candidates(
    runs: Sequence[Run], judged: Judged, max_loss: float, config: Mapping[str, Any], among: Costs
) -> tuple[list[Setting], list[str]]:
    """The benchmark's settings with the user's model, and the names of those that cannot be predicted."""
    made, left_out = [], []
    good = judged.at_most(max_loss)
    work = speed.workload(runs[0].model, runs, None)
    sizes = speed.Sizes.of(p.shape for p in unallocated(config).parameters())
    first = {run.row: run for run in sorted(runs, key=lambda run: -run.seed)}
    for row, run in first.items():
        if row not in judged.shown or run.method == methods.DENSE:
            continue
        own = with_method(config, run)
        if own is None or run.method.startswith(methods.OTHER_OPTIMIZER):
            left_out.append(run.method)
            continue
        larger = sizes.parameters / run.summary["parameters"]
        step = work.step(run, speed.CPU, among.workers)
        assert step is not None
        calls = speed.enlarged(run, step.parts[0].first, work.vectors, sizes)
        estimate = larger * (step.compress + step.decompress) + seconds(calls, among)
        made.append(Setting(run.method, judged.shown[row], row in good, estimate, own, run))
    return made, sorted(left_out)


def with_method(config: Mapping[str, Any], run: Run) -> dict[str, Any] | None:
    """The config with a run's method, after its warm-up. None for a policy that decides in the run, for a
    method that changes with the steps by itself, and for one whose momentum the config's optimizer does not
    have."""
    own = deepcopy(dict(config)) | {key: deepcopy(run.config[key]) for key in METHOD}
    kept = {key: run.config["exchange"][key] for key in ("aggregation", "unit")}
    own["exchange"] = {**own["exchange"], **kept}
    if "momentum_correction" in own["wrap"]:  # it applies momentum on the workers
        if "momentum" not in own["optimizer"]:
            return None
        own["optimizer"] = {**own["optimizer"], "momentum": 0}
    changes = "onebit_adam" in own["wrap"] or run.setting("train.local_steps", 1) > 1
    if changes or speed.policy_of(own) not in speed.PLANNED:
        return None
    return settled(own)


def command_of(run: Run) -> str:
    """The overrides of a run's method, as they are typed."""
    names = [name for name in options("compressor") if f"{run.method}_".startswith(f"{name}_")]
    name = max(names, key=len, default=str(run.setting("compressor._target_")).split(".")[-2])
    node = option("compressor", name)
    usual = node.get("compressor", node)
    settings = {
        key: value
        for key, value in run.config["compressor"].items()
        if key
        in ("density", "bits", "rank", "levels", "norm", "block", "k", "quantized", "search_from")
        and usual.get(key) != value
    }
    words = [f"compressor={name}", *(f"compressor.{k}={v}" for k, v in settings.items())]
    words.append(f"wrap=[{','.join(run.config['wrap'])}]")
    policy = run.config["policy"]
    if policy.get("values"):
        chosen = str(policy["_target_"]).split(".")[-2]
        words.append(f"policy={chosen}")
        words += [
            f"policy.{key}={str(value).replace(' ', '')}"
            for key, value in policy.items()
            if key != "_target_" and value != option("policy", chosen).get(key)
        ]
    if (way := run.setting("exchange.aggregation")) != speed.GATHER:
        words.append(f"exchange.aggregation={way}")
    return " ".join(words)


def _optimizer_of(run: Run) -> str:
    keys = ("lr", "weight_decay", "reference_batch")
    words = (f"optimizer.{key}={run.setting(f'optimizer.{key}')}" for key in keys)
    return " ".join([f"optimizer={_optimizer_name(run.config)}", *words]).replace("None", "null")


def _optimizer_name(config: Mapping[str, Any]) -> str:
    """As it is typed: the YAML of its class from which the fewest settings differ; of a class without a YAML,
    its ``_target_``."""
    own = config["optimizer"]
    nodes = {name: option("optimizer", name) for name in options("optimizer")}
    differing = {
        name: sum(own.get(key) != value for key, value in node.items() if key != "lr")
        for name, node in nodes.items()
        if node["_target_"] == own["_target_"]
    }
    return min(differing, key=differing.__getitem__, default=str(own["_target_"]))


def _warmup_of(run: Run) -> str:
    """A sentence where the run's plan is in steps of a short training."""
    rungs = run.setting("policy.rungs")
    if not rungs:
        return ""
    return (
        f"Its warm-up of {rungs[-1][0]} steps was for a training of {run.summary['steps']} steps: "
        "lengthen it for yours. "
    )


def _show(
    rows: Sequence[tuple[Setting | None, Prediction]],
    about: Mapping[str, Any],
    max_loss: float,
    runs: Sequence[Run],
    judged: Judged,
) -> None:
    console = console_of_width()
    for line in head(about):
        console.print(line, soft_wrap=True)
    headings = [
        *("setting", f"loss\n{judged.workload.unit}", "payload\nMB", "compress +\ndecompress ms"),
        *("communicate\nms", "step\nms", "x dense"),
    ]
    cells: list[list[str]] = []
    dense = next(row for setting, row in rows if setting is None)
    for setting, row in rows:
        overlap = " with overlap" if row.best_ms < row.step_ms else ""
        times = (row.compress_ms + row.decompress_ms, row.communicate_ms, row.best_ms)
        loss = "0"
        if setting is not None:
            loss = f"{setting.loss.text}{'' if setting.is_shown else UNDECIDED}"
        numbers = [f"{value:.3g}" for value in (row.payload_mb, *times)]
        cells.append([row.method + overlap, loss, *numbers, f"{dense.best_ms / row.best_ms:.2f}"])
    console.print(grid("Fastest first", headings, cells, wraps=True))
    console.print(
        f"loss: of the benchmark,{UNDECIDED}: not shown to be at most {max_loss:g}; payload, compress and "
        "decompress: measured here; communicate, step and x dense: modelled",
        soft_wrap=True,
    )
    place = next(i for i, (one, _) in enumerate(rows) if one is None or one.is_shown)
    setting, best = rows[place]
    first = next(run for run in runs if run.method == methods.DENSE)
    faster = f"{dense.best_ms / best.best_ms:.2f} times as fast as dense,"
    console.print(
        f"{faster if setting else 'dense training is'} the fastest of the settings measured and shown to "
        f"lose at most {max_loss:g} {judged.workload.unit}:",
        soft_wrap=True,
    )
    console.print(_typed(setting, best), soft_wrap=True, style="bold", markup=False)
    if place:
        other, row = rows[0]
        assert other is not None, "dense training is decided"
        console.print(
            f"{dense.best_ms / row.best_ms:.2f} times as fast as dense, but the seeds do not show that it "
            "loses at most so much:",
            soft_wrap=True,
        )
        console.print(_typed(other, row), soft_wrap=True, markup=False)
    for one in (setting, *([rows[0][0]] if place else [])):
        if one is not None:
            console.print(
                f"The benchmark trained {one.name} with {_optimizer_of(one.run)}, and dense training with "
                f"{_optimizer_of(first)}. Tune the rate for your model. {_warmup_of(one.run)}".rstrip(),
                soft_wrap=True,
            )
    console.print(
        f"The loss was measured on {facts.model_text(first)}, {facts.data_text(runs)}, "
        f"{facts.world_text(first)} (results/{POOL}). For your model, data and number of workers it is an "
        "extrapolation. Rule: a loss that is shown to be at most the allowed one (moderated t, Holm's "
        "correction over the benchmark's settings), then the shortest step. Train with the setting and with "
        "dense before you rely on it.",
        soft_wrap=True,
    )


def _typed(setting: Setting | None, best: Prediction) -> str:
    """The overrides of a setting, or of dense training, as they are typed."""
    words = [command_of(setting.run) if setting else "compressor=dense"]
    return " ".join([*words, *(["exchange.overlap=true"] if best.best_ms < best.step_ms else [])])
