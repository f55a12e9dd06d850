"""``predict``: what a training step will take on a network, by the model (network/cost.py).

``python -m dgc_repro predict compressor=topk compressor.density=0.01 model=resnet101
network=ethernet_1gbit workers=2..256``. What a worker computes is measured on this machine or read from
a file (step_timing.py); what is on the network is modelled. Nothing is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.exchange.aggregation import AUTO
from dgc_repro.exchange.clock import WARMUP_STEPS
from dgc_repro.launch import cli_args
from dgc_repro.launch.build import SECTIONS, validate
from dgc_repro.launch.components import build_policy, low_rank_of, settled
from dgc_repro.launch.measure import parameters
from dgc_repro.launch.networks import costs, named_network, refuse_lost_packets, refuse_stand_ins
from dgc_repro.launch.overrides import apart, composed
from dgc_repro.launch.paths import options
from dgc_repro.network.cost import Costs
from dgc_repro.network.iteration import Step, break_even_rate
from dgc_repro.network.profile import Network
from dgc_repro.predict.quality import Benchmark
from dgc_repro.predict.show import show
from dgc_repro.predict.step_timing import Bench, as_simulated
from dgc_repro.progress import Progress, announce

DENSE = ("compressor=dense", "wrap=[]", "policy=fixed", "exchange.aggregation=gather")
FED = "wrap=[per_layer,error_feedback]"
UNIFORM8 = ("compressor=uniform", "compressor.bits=8", "compressor.block=512", FED)
UNIFORM4 = ("compressor=uniform", "compressor.bits=4", "compressor.block=512", FED)
TOPK100 = ("compressor=topk", "compressor.density=0.01", FED)
SHARDED, GTOPK = "exchange.aggregation=sharded", "exchange.aggregation=gtopk"
CANDIDATES: Mapping[str, Sequence[str]] = {
    "fp16": ("compressor=fp16", "wrap=[]"),
    "uniform 8 bits": UNIFORM8,
    "uniform 8 bits, sharded": (*UNIFORM8, SHARDED),
    "uniform 4 bits": UNIFORM4,
    "uniform 4 bits, sharded": (*UNIFORM4, SHARDED),
    "signsgd": ("compressor=signsgd", "optimizer.momentum=0"),
    "topk 10x": ("compressor=topk", "compressor.density=0.1", FED),
    "topk 100x": TOPK100,
    "topk 100x, gtopk": (*TOPK100, GTOPK),
    "topk 1000x": ("compressor=topk", "compressor.density=0.001", FED),
    "dgc_sampled 1000x": ("compressor=dgc_sampled", "compressor.density=0.001", FED),
    "qsgd 4 bits": ("compressor=qsgd", "compressor.levels=7", "compressor.norm=max", "wrap=[]"),
    "terngrad": ("compressor=terngrad", "wrap=[]"),
    "randomk 100x": ("compressor=randomk", "compressor.density=0.01", FED),
    "powersgd rank 4": ("compressor=powersgd", "compressor.rank=4", FED),
    "powersgd rank 1": ("compressor=powersgd", "compressor.rank=1", FED),
}
"""What ``best=true`` compares: method, factor, aggregation."""
SECONDS_PER_PARAMETER = 4e-8
"""Of one step of one method, with and without overlap, on two cores (AMD EPYC): estimates durations only."""
METHOD_KEYS = ("compressor", "wrap", "wrapper", "policy", "exchange.aggregation", "exchange.unit")
KEYS: cli_args.Keys = {
    "workers": (cli_args.workers_range, [2, 4, 8, 16, 32]),
    "times": (cli_args.some_text, None),
    "compute_ms": (cli_args.positive, None),
    "repeats": (cli_args.count, 5),
    "best": (cli_args.yes_no, True),
    "out": (cli_args.some_text, None),
}


@dataclass(frozen=True)
class Prediction:
    """A method among ``workers``; milliseconds. ``overlap_ms``: with communication behind backward
    (`exchange.overlap=true`), None where the method cannot; efficiencies are the step of one
    worker that exchanges nothing, over this one's (throughput T_N / (N T_1)); ``break_even``: the rate in
    bits a second below which this is faster than dense, both without overlap (inf: it always is; NaN:
    never; None: it is dense); ``loss``: mean in the published benchmark (quality.py), over so many
    ``seeds``, None where it has none."""

    method: str
    workers: int
    compute_ms: float
    compress_ms: float
    communicate_ms: float
    decompress_ms: float
    step_ms: float
    overlap_ms: float | None
    efficiency: float
    overlap_efficiency: float | None
    speedup: float
    overlap_speedup: float | None
    payload_mb: float
    break_even: float | None
    loss: float | None
    seeds: int

    @property
    def best_ms(self) -> float:
        """With overlap where that is possible and faster."""
        return min(self.step_ms, self.overlap_ms or math.inf)


def predict(arguments: Sequence[str]) -> Path:
    """Do what the command line says; the folder that was written. Raises UserError."""
    settings, overrides = cli_args.read(arguments, "predict", KEYS, SECTIONS)
    overrides = cli_args.full_size(overrides)
    config = composed(overrides)
    network = network_of(config)
    among = {n: costs(network, n) for n in settings["workers"]}
    validate(as_simulated(config, 2))
    path = Path(settings["times"]) if settings["times"] else None
    bench = Bench(config, path, settings["repeats"])

    without = apart(overrides, *METHOD_KEYS)[1]
    largest = {max(among): among[max(among)]}
    dense_config = composed([*without, *DENSE])
    compares_method = not _is_dense(config, dense_config)
    others = candidates(without, config) if settings["best"] else {}
    asked = [("dense", dense_config, among)]
    if compares_method:
        others = {title: other for title, other in others.items() if other != config}
        name = method_name(config)
        taken = name in ("dense", *others)
        asked.append((f"{name} (as given)" if taken else name, config, among))
    asked += [(title, other, largest) for title, other in others.items()]
    model = str(config["model"]["_target_"]).rpartition(".")[2]
    benchmark = Benchmark(model)
    table = Predictions(bench, dense_config, settings["compute_ms"], benchmark)
    each = parameters(config) * SECONDS_PER_PARAMETER * (WARMUP_STEPS + settings["repeats"])
    expected = [each * _weight(method_config) for _, method_config, _ in asked]
    announce("predict", sum(expected))
    found = []
    with Progress("predict", sum(expected)) as progress:
        for seconds, (title, method_config, workers) in zip(expected, asked, strict=True):
            found.append(table.rows(title, method_config, workers))
            progress.advance(seconds, f"{title} done")
    dense, *of_others = found
    of_method = of_others.pop(0) if compares_method else []
    compared = []
    if settings["best"]:
        compared = [one for one in (*dense, *of_method) if one.workers in largest]
        compared = sorted([*compared, *chain(*of_others)], key=lambda one: one.best_ms)
    folder = Path(settings["out"] or Path(config["paths"]["runs"]) / "predictions")
    about = bench.times.about | {
        "network": network_title(network, overrides),
        "source": network.source,
        "compute": "given" if settings["compute_ms"] else "measured",
        "quality": benchmark.source,
    }
    show(dense, of_method, compared, about, folder)
    return folder


def candidates(without: Sequence[str], config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Configs of `CANDIDATES`. ``without``: overrides that name no method; ``config``: made of them."""
    has_momentum = "momentum" in config["optimizer"]
    return {
        title: composed(
            [*without, *(o for o in method if has_momentum or not o.startswith("optimizer."))]
        )
        for title, method in CANDIDATES.items()
    }


def network_of(config: Mapping[str, Any]) -> Network:
    """The network of a config. Raises UserError where one step on it cannot be predicted."""
    network = named_network(config)
    if network is None:
        raise UserError(
            "network: a prediction needs one, such as network=ethernet_1gbit or network.rate=100mbit; "
            "python -m dgc_repro calibrate measures the links at hand"
        )
    settled(config)
    if low_rank_of(config) is not None:
        raise UserError(
            "model.low_rank: a prediction is of one model, and low_rank replaces it in the run; use "
            "model.low_rank.from_epoch=null"
        )
    if config["train"]["local_steps"] > 1:
        raise UserError(
            "train.local_steps: a prediction is of one step with its exchange; use train.local_steps=1"
        )
    if config["launch"].get("workers_per_node"):
        raise UserError(
            "launch.workers_per_node: a prediction has no nodes that average first; leave it out, or give "
            "workers that share a link as network.workers_per_node"
        )
    if config["optimizer"].get("compressed") == "first":
        raise UserError(
            "optimizer.compressed: first also averages an uncompressed gradient in each step, which a "
            "prediction leaves out; use optimizer.compressed=perturbed"
        )
    refuse_lost_packets({**config, "launch": {"kind": "predict"}})
    refuse_stand_ins(config, "a prediction has workers of its own (workers=2..256)")
    if network.schedule:
        raise UserError(
            "network.schedule: a prediction is of one step, at one rate; give the rate that is asked for, "
            "such as network.rate=100mbit"
        )
    if config["exchange"]["aggregation"] == AUTO:
        raise UserError(
            "exchange.aggregation: auto depends on the number of workers, a prediction is of one way; "
            "name it (gather, sharded or gtopk)"
        )
    return network


@dataclass
class Predictions:
    """Makes rows. ``dense``: the config of plain averaging; ``compute_ms``: given, or None: measured;
    ``benchmark``: where losses come from."""

    bench: Bench
    dense: Mapping[str, Any]
    compute_ms: float | None
    benchmark: Benchmark

    def __post_init__(self) -> None:
        self._dense_overlaps = _can_overlap(self.dense)

    def rows(
        self, name: str, config: Mapping[str, Any], among: Mapping[int, Costs]
    ) -> list[Prediction]:
        """A method among each number of workers."""
        overlaps = _can_overlap(config)
        losses = self.benchmark.losses(config)
        return [self._row(name, config, cost, losses, overlaps) for cost in among.values()]

    def _row(
        self,
        name: str,
        config: Mapping[str, Any],
        cost: Costs,
        losses: Sequence[float],
        overlaps: bool,
    ) -> Prediction:
        step, plain = (self._step(c, False, cost) for c in (config, self.dense))
        whole, dense = step.after_backward(cost), plain.after_backward(cost)
        behind = dense_behind = None
        if overlaps:
            behind = self._step(config, True, cost).per_bucket(cost)
            if self._dense_overlaps:
                dense_behind = self._step(self.dense, True, cost).per_bucket(cost)
        calls = (calls for part in step.parts for calls in (part.first, part.later))
        return Prediction(
            method=name,
            workers=cost.workers,
            compute_ms=1e3 * step.compute,
            compress_ms=1e3 * step.compress,
            communicate_ms=1e3 * step.communicate(cost),
            decompress_ms=1e3 * step.decompress,
            step_ms=1e3 * whole,
            overlap_ms=1e3 * behind if behind else None,
            efficiency=step.compute / whole,
            overlap_efficiency=step.compute / behind if behind else None,
            speedup=dense / whole,
            overlap_speedup=dense_behind / behind if behind and dense_behind else None,
            payload_mb=sum(size for some in calls for _, size in some.values()) / 1e6,
            break_even=None if config is self.dense else _break_even(step, plain, cost),
            loss=sum(losses) / len(losses) if losses else None,
            seeds=len(losses),
        )

    def _step(self, config: Mapping[str, Any], overlap: bool, cost: Costs) -> Step:
        return self.bench.step(config, overlap, cost.workers, self.compute_ms)


def _break_even(step: Step, dense: Step, cost: Costs) -> float:
    """The outer links' rate at which the method takes as long as dense; no overlap in either."""

    def gain(rate: float) -> float:
        network = replace(cost.network, rate=f"{rate:.0f}bit", rates=None, schedule=None)
        there = Costs(network, cost.workers)
        return dense.after_backward(there) - step.after_backward(there)

    found = break_even_rate(gain)
    return math.nan if found is None else found


def _weight(config: Mapping[str, Any]) -> float:
    """Of a method in the estimate of durations: `sharded` and `gtopk` are simulated for all workers."""
    return 1.0 if config["exchange"]["aggregation"] == "gather" else 4.0


def _can_overlap(config: Mapping[str, Any]) -> bool:
    """Whether the method can go per bucket; `validate` says why where it cannot."""
    plain = as_simulated(config, 2)
    plain["launch"]["kind"] = "local"
    plain["exchange"]["overlap"] = True
    try:
        validate(plain)
    except UserError:
        return False
    return True


def _is_dense(config: Mapping[str, Any], dense: Mapping[str, Any]) -> bool:
    """Whether the config's exchange is that of ``dense``, in which `per_layer` changes nothing."""
    same = all(config[key] == dense[key] for key in ("compressor", "policy", "exchange"))
    return same and set(config["wrap"]) <= {"per_layer"}


def method_name(config: Mapping[str, Any]) -> str:
    """The compressor as it is typed, with its main settings and those that differ from its YAML, after its
    warm-up."""
    policy = build_policy(settled(config))
    compressor = dict(config["compressor"])
    rung = policy.plan(policy.init(), 0).rung
    if policy.field is not None and rung:
        compressor[policy.field] = policy.values[rung - 1]
    name, usual = _usual(config)
    words = [name]
    if policy.field is not None and rung == 0:
        words.append("rung=0 (uncompressed)")
    else:
        shown = ("density", "factor", "bits", "rank", "levels", "block")
        for key, value in compressor.items():
            if (key in shown and value is not None) or value != usual["compressor"].get(key):
                words.append(f"{key}={value}")
    wrap, exchange = _wrap(config), config["exchange"]
    if wrap != usual["wrap"]:
        words.append(f"wrap=[{','.join(wrap)}]")
    if exchange["unit"] != usual["exchange"]["unit"]:
        words.append(f"unit={exchange['unit']}")
    if exchange["aggregation"] != "gather":
        words.append(exchange["aggregation"])
    return " ".join(words)


def _usual(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Name of the compressor's YAML and the config that it brings; of several with the same ``_target_``,
    such as topk and magnitude, the one with the config's wrap and unit."""
    target = str(config["compressor"]["_target_"])
    module = target.split(".")[-2]
    brought = {name: composed([f"compressor={name}"]) for name in options("compressor")}
    same = {name: c for name, c in brought.items() if c["compressor"].get("_target_") == target}
    for name, usual in same.items():
        unit = usual["exchange"]["unit"]
        if usual["wrap"] == _wrap(config) and unit == config["exchange"]["unit"]:
            return name, usual
    return module, same.get(module) or {**composed([]), "compressor": config["compressor"]}


def _wrap(config: Mapping[str, Any]) -> list[str]:
    return [name for name in config["wrap"] if name != "ladder"]


def network_title(network: Network, overrides: Sequence[str]) -> str:
    """The network in words, as it was given."""
    named = [o.removeprefix("network=") for o in overrides if o.startswith("network=")]
    rate = network.rate or "/".join(network.rates or ())
    words = [*named[-1:], rate, f"latency {network.latency}"]
    if network.workers_per_node:
        words.append(f"{network.workers_per_node} workers a node at {network.node_rate}")
    return ", ".join(words)
