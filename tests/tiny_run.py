"""Runs small enough for a test: the real config, a slim model, 128 digits, two workers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hydra import compose
from torch import Tensor

from dgc_repro.dataset.descriptions import Descriptions
from dgc_repro.dataset.digits import Digits
from dgc_repro.launch.build import build_run
from dgc_repro.launch.overrides import resolved
from dgc_repro.launch.paths import composing
from dgc_repro.launch.rules import validate
from dgc_repro.nests import tensors_of
from dgc_repro.train import checkpoint
from dgc_repro.train.loop import train
from dgc_repro.train.run import Run
from dgc_repro.train.streaming import Streaming

STEPS_PER_EPOCH = 4  # 128 images, 2 workers, batches of 16
TINY = (
    *("launch=simulated", "launch.threads=1", "launch.timeout_seconds=60", "launch.device=cpu"),
    *("sink=none", "dataset=digits", "dataset.train_size=128", "dataset.validation=51"),
    *("dataset.test_size=53", "model.width=4", "train.batch_size=16", "train.epochs=2"),
)
PLAIN = ("~model", "+model={_target_:odd_models.Plain,poisoned_steps:[],poisoned_rank:1}")
TEXT = (
    *("model=lstm", "dataset=descriptions", "dataset.train_size=1200", "dataset.validation=100"),
    *("dataset.test_size=101", "dataset.bptt=12", "model.width=6", "model.dropout=0.2"),
    *("train.batch_size=10", "optimizer.momentum=0", "optimizer.clip_norm=0.25"),
)  # 4 steps an epoch: 20 columns of 60 words
RECIPE = ("recipe=low", "launch.workers=2", "model.width2=8", "model.width3=8")
UNIFORM4_EF = ("compressor=uniform", "compressor.bits=4", "wrap=[error_feedback]")
STEPWISE = (
    *("compressor=uniform", "policy=stepwise", "policy.values=[8,4]", "policy.patience_epochs=1"),
    *("policy.accuracy_thresholds=[99]", "policy.loss_differences=[0.01]"),
)
TIMED = ("network=ethernet_1gbit", "train.step_time=modelled", "train.compute_ms=5")
"""Times that are the same whenever the run is made again."""
FINISHED = Path(__file__).resolve().parent / "finished_run"
"""The record of a finished run, for policies that are given some."""
FED = "wrap=[error_feedback]"
EF4, DOWN, TIMES = map(" ".join, (UNIFORM4_EF, STEPWISE, TIMED))
TABLE = f"""
dense | compressor=dense wrap=[]
uniform nearest | compressor=uniform compressor.bits=6 wrap=[]
uniform stochastic | compressor=uniform compressor.rounding=stochastic wrap=[]
uniform in blocks | compressor=uniform compressor.block=100 wrap=[]
error feedback | {EF4}
stepwise over a ladder with one residual | {DOWN} {FED}
stepwise over a ladder of residuals | {DOWN} wrap=[ladder,error_feedback]
per layer | {EF4} wrap=[per_layer,error_feedback]
fixed rung | compressor=uniform policy.field=bits policy.values=[8,4] wrap=[]
topk | compressor=topk {FED}
threshold | compressor=threshold {FED}
threshold, fixed | compressor=threshold compressor.threshold=0.01 wrap=[]
dgc_sampled | compressor=dgc_sampled {FED}
redsync | compressor=redsync compressor.search_from=100 {FED}
sidco | compressor=sidco compressor.fit=gamma {FED}
magnitude | compressor=magnitude {FED}
demo | compressor=demo compressor.k=4 compressor.chunk=8
sparseloco | compressor=sparseloco
running_uniform | compressor=running_uniform compressor.bits=4 wrap=[]
fp16 | compressor=fp16 wrap=[]
bf16 | compressor=bf16 wrap=[]
qsgd | compressor=qsgd wrap=[]
natural | compressor=natural wrap=[]
blockfloat | compressor=blockfloat compressor.format=nvfp4 wrap=[]
eden | compressor=eden compressor.block=64 wrap=[]
drive | compressor=drive compressor.rotations=2 compressor.shared=true wrap=[]
terngrad | compressor=terngrad compressor.shared_scale=true wrap=[]
onebit | compressor=onebit {FED}
signsgd | compressor=signsgd wrap=[]
ef_signsgd | compressor=ef_signsgd {FED}
powersgd | compressor=powersgd compressor.rank=2 {FED}
dion | compressor=dion
powersgd on a ladder | compressor=powersgd policy=fixed policy.field=rank policy.values=[4,1] \
policy.rung=2 {FED}
randomk | compressor=randomk compressor.density=0.1 {FED}
randomk apart | compressor=randomk compressor.shared=false compressor.factor=4 wrap=[]
dgc | compressor=dgc
dgc clipped | compressor=dgc wrap=[clip_local,momentum_correction,error_feedback] \
wrapper.clip_local.threshold=0.5 wrapper.momentum_correction.nesterov=true
block momentum | compressor=uniform compressor.bits=2 wrap=[block_momentum,per_layer] \
optimizer.momentum=0 schedule.warmup_epochs=0.5
onebit_adam | compressor=onebit_adam optimizer.freeze_steps=3
loco | compressor=loco wrapper.loco.reset_steps=3
shards | {EF4} compressor.block=100 exchange.aggregation=sharded
shards of a ladder | {DOWN} {FED} exchange.aggregation=sharded
warm-up | compressor=topk policy=warmup policy.values=[0.5,0.1] {FED}
gravac | compressor=topk policy=gravac policy.window=2 policy.theta_min=2 policy.theta_max=50 {FED} {TIMES}
accordion | compressor=topk policy=accordion policy.eta=0.05 {FED}
accordion by own gradients | compressor=powersgd policy=accordion policy.field=rank policy.values=[4,1] \
policy.norm=own {FED}
gravac a step later | compressor=topk policy=gravac policy.window=2 policy.theta_min=2 \
policy.theta_max=50 {FED} policy.omega=0 policy.eps=0.5 policy.decide=last {TIMES}
probed | compressor=topk policy=probed policy.field=factor policy.value=10 policy.spread=true {FED} {TIMES}
probed without a ladder | compressor=dense policy=probed wrap=[] {TIMES}
scadles | compressor=topk policy=scadles policy.delta=0.5 {FED} {TIMES}
oracle | compressor=topk policy=oracle policy.runs=['FINISHED',null] {FED}
adaqs | compressor=uniform policy=adaqs policy.falls_by=0.05 policy.least_steps=1 {FED}
scheduled | compressor=topk policy=scheduled policy.by=step policy.rungs=[[0,0],[2,1],[5,2]] {FED}
one vector | {EF4} exchange.unit=model
local steps | {EF4} train.local_steps=2
fragments | {EF4} train.local_steps=2 train.fragments=2 train.mixing=0.5
"""
SETTINGS = {
    name: tuple(word.replace("FINISHED", str(FINISHED)) for word in overrides.split())
    for name, _, overrides in (line.partition(" | ") for line in TABLE.strip().splitlines())
}
"""One line for each compressor, wrapper and policy; test_config.py counts that none is missing."""


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    with composing():
        return resolved(compose("config", list(overrides)))


def configured(*overrides: str) -> dict[str, Any]:
    """The resolved config of the defaults and these overrides."""
    return deepcopy(_composed(overrides))


def tiny(*overrides: str) -> dict[str, Any]:
    """The resolved config of a tiny run, simulated unless told otherwise."""
    return configured(*TINY, *overrides)


_digits, _descriptions = functools.cache(Digits.load), functools.cache(Descriptions.load)


def build(config: dict[str, Any]) -> Run:
    """The run of a config, at its first step. Runs share what they read of their data sets, which takes
    longer than a few steps."""
    validate(config)
    with (
        mock.patch.object(Digits, "load", _digits),
        mock.patch.object(Descriptions, "load", _descriptions),
    ):
        return build_run(config, torch.device("cpu"))


def built(*overrides: str) -> Run:
    """A tiny run in this process, at its first step."""
    return build(tiny(*overrides))


@dataclass
class Story:
    """What a run told: one entry a step and one an epoch."""

    losses: list[float] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    finished: bool = False


def play(run: Run, until: int | None = None, folder: Path | None = None) -> Story:
    """Train to the end, or to the end of step ``until`` as if somebody had asked to stop.
    Checkpoints are counted, and written where there is a ``folder``."""
    story = Story()

    def on_step(metrics: Mapping[str, Any]) -> None:
        story.losses.append(float(metrics["train/loss"]))
        run.stop_requested = until is not None and run.progress.step >= until - 1

    def on_checkpoint() -> None:
        story.checkpoints.append(run.progress.step)
        if folder is not None:
            checkpoint.save(run, folder, "a config")

    run.stop_requested = until == run.progress.step + 1
    story.finished = train(
        run,
        on_step,
        lambda record: story.records.append(dict(record)),
        on_checkpoint,
    )
    return story


def without_times(record: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same whenever the run is made again."""
    return {key: value for key, value in record.items() if not key.startswith("time/")}


def state_of(run: Run) -> dict[str, list[Tensor]]:
    """Copies of every tensor that the next step depends on."""
    nests = {
        "model": run.module.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "inner": [inner.state_dict() for inner in (run.local.inner if run.local else ())],
        "own": [run.local.state_dict(i) for i in range(len(run.workers.ranks))]
        if isinstance(run.local, Streaming)
        else [],
        "compressor": [run.exchange.states(i) for i in range(len(run.workers.ranks))],
        "random": [run.workers.state_dict(i) for i in range(len(run.workers.ranks))],
        "epoch start": run.progress.epoch_start,
        "carried": run.progress.carried,
    }
    return {name: [t.clone() for t in tensors_of(nest)] for name, nest in nests.items()}


def assert_same_state(run: Run, other: Run) -> None:
    """Bit for bit, tensors and the small things beside them."""
    ours, theirs = state_of(run), state_of(other)
    for name, tensors in ours.items():
        assert len(tensors) == len(theirs[name]), name
        for one, two in zip(tensors, theirs[name], strict=True):
            assert torch.equal(one, two), name
    assert run.world.ledger == other.world.ledger
    assert run.progress.policy == other.progress.policy
    assert run.progress.tally == other.progress.tally
    assert (run.progress.step, run.progress.epoch) == (other.progress.step, other.progress.epoch)


def assert_continues(
    overrides: Sequence[str], stop_after: int, folder: Path, whole: Run, told: Story
) -> None:
    """A run that is stopped after a step, saved, built anew, loaded and continued is the uninterrupted one,
    ``whole`` with its story, bit for bit."""
    first, second = built(*overrides), built(*overrides)
    before = play(first, until=stop_after)
    assert not before.finished
    assert before.checkpoints[-1] == first.progress.step == stop_after
    checkpoint.save(first, folder, "a config")
    assert checkpoint.load(second, folder, "a config") == []
    assert_same_state(first, second)
    after = play(second)
    assert before.losses + after.losses == told.losses
    records = before.records + after.records
    assert [without_times(r) for r in records] == [without_times(r) for r in told.records]
    assert_same_state(whole, second)
