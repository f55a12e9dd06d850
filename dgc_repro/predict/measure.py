"""``recommend measure=true``: time a model and some settings on this machine.

Compute is the trainer's own: one worker, real batches, forward, backward and optimizer. The exchange is the
real one, with the gradients of the last step, on a wire that answers at once: every other worker is taken to
send what this one sends. A method given as a run's (``compressor=``, ``wrap=``, ``policy=``) is timed too;
nobody knows its cost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dgc_repro.bench.alone import FIXED, Alone
from dgc_repro.bench.rounds import rounds
from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.clock import WARMUP_STEPS
from dgc_repro.launch import cli_args, environment
from dgc_repro.launch.devices import choose_device
from dgc_repro.launch.overrides import check_overrides, composed
from dgc_repro.launch.rules import validate
from dgc_repro.launch.settings import after_warmups, build_compressor, build_policy, unallocated
from dgc_repro.launch.study import gradients_of, trained
from dgc_repro.network.cost import Calls, Costs, seconds_of
from dgc_repro.network.profile import Network
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import UNDECIDED, Shown
from dgc_repro.paper.records import Run
from dgc_repro.policy.interface import Plan
from dgc_repro.predict.ranked import Row
from dgc_repro.predict.recommend import METHOD, YOURS
from dgc_repro.progress import Progress
from dgc_repro.train.step import train_step

REPEATS = 5
EMBEDDED = {"cifar10": "digits", "ptb": "descriptions"}
"""Data sets of the package, where the named ones are not here."""
UNKNOWN = Shown(UNDECIDED, 0, math.nan, math.nan, math.nan)
WORDS = ("dataset=ptb", "dataset.train_part=valid", "dataset.validation=null")
DENSE = ("compressor=dense", "wrap=[]", "policy=fixed", "exchange.aggregation=gather")


def timed(
    rows: Sequence[Row],
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    workers: int,
    network: Network,
) -> list[Row]:
    """The rows with what this machine measures. ``settings``: of `recommend`; ``overrides``: of a run.
    Raises UserError."""
    if settings["parameters"]:
        raise UserError("parameters: measure=true times the model itself; leave it out")
    given = [one for one in overrides if not one.startswith("network.")]
    check_overrides(given)
    method = [one for one in given if one.partition("=")[0].split(".")[0] in METHOD]
    given = [one for one in given if one not in method]
    words = WORDS if settings["model"] in ("lstm", "transformer") else ()
    base = [*words, f"model={settings['model']}", f"train.batch_size={settings['batch']}", *given]
    config = alone(composed([*cli_args.full_size(base), *DENSE]))
    validate(config)
    if method:
        rows = [*rows, yours(rows[0], alone(composed([*cli_args.full_size(base), *method])))]
    costs = Costs(network, workers)
    found = []
    threads = environment.threads(environment.threads_of_worker(config["launch"]))
    with threads, Progress("recommend", len(rows) + 1) as progress:
        compute, gradients = train(config)
        if settings["compute_ms"]:
            compute = settings["compute_ms"] / 1e3
        progress.advance(now="compute done")
        for row in rows:
            own = config if row.cost is None else with_method(config, row.run)
            policy = build_policy(own)
            plan = policy.plan(policy.init(), 0)
            compressor = build_compressor(own, policy, unallocated(own))
            exchange, calls = time_exchange(
                compressor, gradients, workers, plan, own["exchange"]["unit"]
            )
            talk = seconds_of(calls, costs)
            hidden = min(talk, speed.BACKWARD * compute) if speed.can_overlap(row.run) else 0.0
            found.append(
                replace(
                    row, compute=compute, exchange=exchange, calls=calls, communicate=talk,
                    hidden=hidden,
                )
            )  # fmt: skip
            progress.advance(now=f"{row.run.method} done")
    return found


def yours(dense: Row, config: dict[str, Any]) -> Row:
    """The row of a method that the benchmark does not have. Raises UserError."""
    validate(config)
    config["experiment"]["row"] = YOURS
    return replace(dense, run=Run(YOURS, config, {}, {}), cost=UNKNOWN)


def alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as that of one simulated worker on no network."""
    plain = deepcopy(dict(config))
    plain["launch"] |= {"kind": "simulated", "workers": 1}
    plain["exchange"] |= {"overlap": False}
    return plain


def with_method(config: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The config with a run's method, after its warm-up."""
    own = deepcopy(dict(config)) | {key: deepcopy(run.config[key]) for key in METHOD}
    own["exchange"] = {**own["exchange"], "unit": run.config["exchange"]["unit"]}
    if "momentum_correction" in own["wrap"]:  # it applies momentum on the workers
        own["optimizer"] = {**own["optimizer"], "momentum": 0}
    return after_warmups(own)


def train(config: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    """Seconds of forward, backward and optimizer in a step, and the gradients of the last one."""
    device = torch.device(choose_device(config)[0])
    run, batches = trained(config, WARMUP_STEPS, EMBEDDED, device)
    run.world.clock.report()
    seconds = []
    for batch in batches:
        train_step(run, batch)
        seconds.append(run.world.clock.report()["time/compute_ms"] / 1e3)
        if len(seconds) == REPEATS:
            break
    if not seconds:
        raise UserError(f"batch: the data make only {WARMUP_STEPS} steps; give a smaller batch")
    return statistics.median(seconds), {n: g.detach().clone() for n, g in gradients_of(run).items()}


def time_exchange(
    compressor: Compressor,
    gradients: Mapping[str, Tensor],
    workers: int,
    plan: Plan = FIXED,
    unit: str = "layer",
) -> tuple[float, Calls]:
    """Median seconds that one worker of ``workers`` takes to compress and decompress, and the collectives of
    the last step. ``gradients``: f32, by parameter name; they are not changed."""
    alone = Alone(compressor, gradients, workers, unit, plan)
    steps = rounds({YOURS: alone.step}, REPEATS, WARMUP_STEPS)[YOURS]
    return float((steps["compress_seconds"] + steps["decompress_seconds"]).median()), alone.calls
