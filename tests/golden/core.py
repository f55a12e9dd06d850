"""What the exchange computes, as hashes: ``python tests/golden/core.py`` writes core.json anew.

A redesign of the core must leave every hash as it is. Five kinds of things are hashed:

trainings   tiny trainings of the trainer, one for each compressor, wrapper and policy (tests/tiny_run.py)
worlds      the settings of the law table on its odd tensors, 2, 3 and 5 simulated workers
loops       training loops with `attach` and DDP, two gloo ranks
sharded     training loops with `attach` and `fully_shard`, four gloo ranks
saved       the third step of nests whose states after two steps are in saved.pt, written in November 2026

Beside each hash stand the bytes that a worker hands over and the number of its collectives.
Convolutions and sums have other bits on other processors and in other versions of torch: the file says
for which `machine` its hashes hold.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from tiny_run import PLAIN, SETTINGS, built, play, without_times  # noqa: E402
from torch import Tensor  # noqa: E402

import dgc_repro as D  # noqa: E402
from dgc_repro.exchange.ledger import GRADIENT, Ledger  # noqa: E402
from dgc_repro.exchange.saved import load_state_dict, state_dict  # noqa: E402
from dgc_repro.policy.interface import Plan  # noqa: E402
from dgc_repro.selfcheck.law_settings import SETTINGS as LAWS  # noqa: E402
from dgc_repro.selfcheck.law_settings.base import Setting  # noqa: E402
from dgc_repro.selfcheck.methods import play as play_setting  # noqa: E402
from dgc_repro.selfcheck.methods import simulation  # noqa: E402
from dgc_repro.selfcheck.values import tensors  # noqa: E402
from dgc_repro.train import checkpoint  # noqa: E402

FILE = HERE / "core.json"
SAVED = HERE / "saved.pt"
CHECKPOINT = HERE / "checkpoint"
"""A run's folder with a checkpoint of step 3, of November 2026."""
WORLDS, STEPS = (2, 3, 5), 3
Seen = list[Any]
"""A hash of 16 hex digits, payload bytes, and how many collectives of each kind carried gradients."""


def digest(parts: Iterable[Tensor | str]) -> str:
    """Of the bits of tensors, and of texts."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            flat = part.detach().cpu().contiguous().reshape(-1)
            found.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        found.update(b"|" if isinstance(part, Tensor) else part.encode())
    return found.hexdigest()[:16]


def sent(ledger: Ledger) -> list[Any]:
    """Payload bytes, and collectives by kind."""
    return [ledger.payload_bytes, dict(sorted(ledger.calls.get(GRADIENT, {}).items()))]


def machine() -> str:
    """Which processor and torch compute: the bits of a convolution, its gradient, and sums."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 16, 16, generator=source)
    weight = torch.randn(8, 3, 3, 3, generator=source, requires_grad=True)
    head = torch.randn(10, 8 * 14 * 14, generator=source, requires_grad=True)
    loss = F.cross_entropy(F.conv2d(x, weight).relu().flatten(1) @ head.T, torch.arange(4))
    loss.backward()
    kind = torch.backends.cpu.get_cpu_capability()
    version = torch.__version__.partition("+")[0]
    return f"{version} {kind} {digest([loss.detach(), weight.grad, head.grad])}"  # type: ignore[list-item]


def training(name: str) -> Seen:
    """A tiny training: weights, losses, and records without times."""
    run = built(*SETTINGS[name])
    story = play(run)
    records = [without_times(record) for record in story.records]
    weights = [*run.module.state_dict().values()]
    losses = json.dumps([loss.hex() for loss in story.losses])
    kept = [{k: v for k, v in one.items() if not k.startswith("comm/")} for one in records]
    return [
        digest([*weights, losses, json.dumps(kept, sort_keys=True, default=str)]),
        *sent(run.world.ledger),
    ]


def world(setting: Setting, workers: int) -> Seen:
    """The means of three steps of a setting of the law table."""
    given = [[tensors(worker, step) for worker in range(workers)] for step in range(STEPS)]
    exchange = simulation(setting, workers, given[0][0])
    means: list[Tensor] = []
    for every in given:
        found = play_setting(exchange, setting, every)
        means += [found[name] for name in sorted(found)]
    return [digest(means), *sent(exchange.world.ledger)]


NESTS: dict[str, tuple[Callable[[], Any], Plan]] = {
    "dgc": (lambda: D.MomentumCorrection(D.ErrorFeedback(D.DGCSampled(0.1))), Plan(0)),
    "powersgd": (lambda: D.PerLayer(D.ErrorFeedback(D.PowerSGD(rank=2))), Plan(0)),
    "ladder": (
        lambda: D.ErrorFeedback(D.Ladder((D.Dense(), D.PowerSGD(rank=2), D.PowerSGD(rank=1)))),
        Plan(1),
    ),
    "ladder of residuals": (
        lambda: D.Ladder((D.Dense(), *(D.ErrorFeedback(D.Uniform(bits)) for bits in (4, 2)))),
        Plan(2),
    ),
    "sidco": (lambda: D.ErrorFeedback(D.SIDCo(0.1)), Plan(0)),
    "loco": (lambda: D.LoCo(D.Uniform(4)), Plan(0)),
    "onebit_adam": (lambda: D.OneBitAdam(D.ErrorFeedback(D.OneBit()), warmup_steps=1), Plan(0)),
    "block_momentum": (lambda: D.BlockMomentum(D.Uniform(4)), Plan(0)),
    "running_uniform": (lambda: D.RunningUniform(bits=4), Plan(0)),
    "dion": (lambda: D.ErrorFeedback(D.Dion()), Plan(0)),
    "shards": (lambda: D.ErrorFeedback(D.Sharded(D.Uniform(4))), Plan(0)),
}
SHAPES = {"matrix": (12, 20), "vector": (20,), "conv": (8, 4, 3, 3)}


def gradients_of(worker: int, step: int) -> dict[str, Tensor]:
    """A worker's gradients of the tensors in `SHAPES`."""
    source = torch.Generator().manual_seed(100 * worker + step)
    return {name: torch.randn(shape, generator=source) for name, shape in SHAPES.items()}


def nest_exchange(name: str) -> tuple[Any, Setting]:
    """The exchange of a nest by two simulated workers."""
    make, plan = NESTS[name]
    setting = Setting(name, make(), plan)
    return simulation(setting, 2, gradients_of(0, 0)), setting


def nest_step(exchange: Any, setting: Setting, step: int) -> dict[str, Tensor]:
    """The means of one step."""
    return play_setting(exchange, setting, [gradients_of(worker, step) for worker in range(2)])


def saved_states(name: str) -> list[Any]:
    """The states of both workers after two steps."""
    exchange, setting = nest_exchange(name)
    for step in range(2):
        nest_step(exchange, setting, step)
    return [state_dict(exchange, worker) for worker in range(2)]


def continued(name: str) -> Seen:
    """The third step of a nest whose states are read from the file."""
    exchange, setting = nest_exchange(name)
    saved = torch.load(SAVED, weights_only=True)
    for worker, state in enumerate(saved[name]):
        load_state_dict(exchange, state, worker)
    means = nest_step(exchange, setting, 2)
    return [digest(means[key] for key in sorted(means))]


CONTINUED = ("compressor=dgc", "optimizer.momentum=0", "train.epochs=2", *PLAIN)


def checkpointed(folder: Path, stop: int | None = None) -> Seen:
    """A run that continues in a folder: a hash of its losses and weights. ``stop``: after so many steps."""
    run = built(*CONTINUED)
    checkpoint.load(run, folder, "a config")
    first = run.progress.step
    story = play(run, until=stop, folder=folder if stop else None)
    losses = json.dumps([loss.hex() for loss in story.losses])
    return [digest([*run.module.state_dict().values(), losses]), first, run.progress.step]


def law_worlds(setting: Setting) -> Mapping[str, Seen]:
    """Of each number of workers."""
    return {str(workers): world(setting, workers) for workers in WORLDS}


def everything(say: Callable[[str], object] = print) -> dict[str, Any]:
    """All hashes, computed here."""
    import core_loops

    torch.set_num_threads(1)
    say("trainings")
    found: dict[str, Any] = {"machine": machine()}
    found["trainings"] = {name: training(name) for name in SETTINGS}
    say("worlds")
    found["worlds"] = {f"{i} {setting}": law_worlds(setting) for i, setting in enumerate(LAWS)}
    say("loops")
    found["loops"] = core_loops.played(core_loops.WHOLE)
    say("sharded")
    found["sharded"] = core_loops.played(core_loops.SHARDED)
    say("saved")
    found["saved"] = {name: continued(name) for name in NESTS}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(CHECKPOINT, folder, dirs_exist_ok=True)
        found["saved"]["a run's checkpoint"] = checkpointed(Path(folder))
    return found


def write_saved() -> None:
    """Write the files of states anew. Those of November 2026 are kept: newer versions must load them."""
    torch.set_num_threads(1)
    torch.save({name: saved_states(name) for name in NESTS}, SAVED)
    shutil.rmtree(CHECKPOINT, ignore_errors=True)
    checkpointed(CHECKPOINT, stop=3)


def main() -> None:
    warnings.simplefilter("ignore")
    if not SAVED.exists():
        write_saved()
    found = everything()
    lines = []
    for kind, of_kind in found.items():
        if isinstance(of_kind, str):
            lines.append(f'"{kind}": {json.dumps(of_kind)}')
            continue
        rows = ",\n".join(f'  "{name}": {json.dumps(seen)}' for name, seen in of_kind.items())
        lines.append(f'"{kind}": {{\n{rows}\n}}')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(FILE)


if __name__ == "__main__":
    main()
