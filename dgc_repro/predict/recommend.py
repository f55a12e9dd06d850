"""``recommend``: which setting to use for a model on a network, at most so much worse than dense training.

``python -m dgc_repro recommend network=ethernet_1gbit workers=8 model=resnet101 max_loss=0.5``. The loss of
quality is that of the published benchmark (results/benchmark), whose models are slim: of another model it is
an extrapolation. Settings that lose no more are put in the order of a rough estimate; the first ones, and
dense training, are then measured on this machine with the user's own model (step_timing.py). What is on the
network is modelled, by the profile that is named (``calibrate`` measures one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
from dgc_repro.paper import facts, frame
from dgc_repro.paper.benchmark import methods, speed
from dgc_repro.paper.page import console_of_width, grid
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import MIN_SEEDS
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

UNSUPPORTED = (
    f"The benchmark does not support this choice: n is below {MIN_SEEDS}, or the interval reaches "
    "beyond the allowed loss. "
)
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
    """A setting of the benchmark. ``losses``: one a seed, points or percent of perplexity; ``estimate``:
    seconds of its exchange, roughly; ``config``: of the user's run with this setting."""

    name: str
    losses: Sequence[float]
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
    every, left_out = candidates(runs, found, config, among)
    good = [one for one in every if np.mean(one.losses) <= settings["max_loss"]]
    good.sort(key=lambda one: one.estimate)

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
    _show(rows, about, settings["max_loss"], runs, found)
    slower = ", ".join(one.name for one in good[settings["measured"] :]) or "none"
    print(f"slower by a rough estimate, not measured: {slower}")
    print(f"lost more than {settings['max_loss']:g}: {len(every) - len(good)} settings")
    others = ", ".join(left_out) or "none"
    print(f"left out (another optimizer, or a setting that changes with the steps): {others}")


def candidates(
    runs: Sequence[Run], found: Any, config: Mapping[str, Any], among: Costs
) -> tuple[list[Setting], list[str]]:
    """The benchmark's settings with the user's model, and the names of those that cannot be predicted."""
    made, left_out = [], []
    work = speed.workload(runs[0].model, runs, None)
    sizes = speed.Sizes.of(p.shape for p in unallocated(config).parameters())
    first = {run.row: run for run in sorted(runs, key=lambda run: -run.seed)}
    for row, run in first.items():
        losses = frame.of(found, methods.LOSS, row)
        if not losses or run.method == methods.DENSE:
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
        made.append(Setting(run.method, losses, estimate, own, run))
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
    """As it is typed; of a class without a YAML, its ``_target_``."""
    target: str = config["optimizer"]["_target_"]
    names = (
        name for name in options("optimizer") if option("optimizer", name)["_target_"] == target
    )
    return next(names, target)


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
    found: Any,
) -> None:
    console = console_of_width()
    for line in head(about):
        console.print(line, soft_wrap=True)
    unit = found.loc[found["quantity"] == methods.LOSS, "unit"].iloc[0]
    headings = [
        *("setting", f"loss\n{unit}", "payload\nMB", "compress +\ndecompress ms"),
        *("communicate\nms", "step\nms", "x dense"),
    ]
    cells: list[list[str]] = []
    dense = next(row for setting, row in rows if setting is None)
    for setting, row in rows:
        overlap = " with overlap" if row.best_ms < row.step_ms else ""
        times = (row.compress_ms + row.decompress_ms, row.communicate_ms, row.best_ms)
        loss = methods.interval(setting.losses) if setting else "0"
        numbers = [f"{value:.3g}" for value in (row.payload_mb, *times)]
        cells.append([row.method + overlap, loss, *numbers, f"{dense.best_ms / row.best_ms:.2f}"])
    console.print(grid("Fastest first", headings, cells, wraps=True))
    console.print(
        "loss: of the benchmark; payload, compress and decompress: measured here; communicate, step and x "
        "dense: modelled",
        soft_wrap=True,
    )
    setting, best = rows[0]
    first = next(run for run in runs if run.method == methods.DENSE)
    command = [command_of(setting.run)] if setting else ["compressor=dense"]
    if best.best_ms < best.step_ms:
        command.append("exchange.overlap=true")
    faster = (
        f"{dense.best_ms / best.best_ms:.2f} times as fast as dense, the fastest of those measured:"
    )
    nothing = "dense training is the fastest of the settings measured:"
    console.print(faster if setting else nothing, soft_wrap=True)
    console.print(" ".join(command), soft_wrap=True, style="bold", markup=False)
    own = f" with {_optimizer_of(setting.run)}, and dense training" if setting else ""
    console.print(
        f"The benchmark trained it{own} with {_optimizer_of(first)}. Tune the rate for your model. "
        f"{_warmup_of(setting.run) if setting else ''}\n"
        f"The loss was measured on {facts.model_text(first)}, {facts.data_text(runs)}, "
        f"{facts.world_text(first)} (results/{POOL}). For your model, data and number of workers it is an "
        f"extrapolation. Rule: mean loss at most {max_loss:g}, then the shortest step. "
        f"{'' if not setting or methods.supports(setting.losses, max_loss) else UNSUPPORTED}"
        "Train with the setting and with dense before you rely on it.",
        soft_wrap=True,
    )
