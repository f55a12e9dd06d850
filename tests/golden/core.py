"""What the exchange computes, as hashes: ``python tests/golden/core.py`` writes core.json anew.

A redesign of the core must leave every hash as it is. Four kinds of things are hashed:

trainings   tiny trainings of the trainer, one for each compressor, wrapper and policy (tests/tiny_run.py)
worlds      the settings of the law table on its odd tensors, 2, 3 and 5 simulated workers
loops       training loops with `attach` and DDP, two gloo ranks
sharded     training loops with `attach` and `fully_shard`, four gloo ranks

Beside each hash stand the bytes that a worker hands over and the number of its collectives.
Convolutions and sums have other bits on other processors and in other versions of torch: the file says
for which `machine` its hashes hold.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from dgc_repro.exchange.ledger import GRADIENT, Ledger  # noqa: E402
from dgc_repro.selfcheck.law_settings import SETTINGS as LAWS  # noqa: E402
from dgc_repro.selfcheck.law_settings.base import Setting  # noqa: E402
from dgc_repro.selfcheck.methods import play as play_setting  # noqa: E402
from dgc_repro.selfcheck.methods import simulation  # noqa: E402
from dgc_repro.selfcheck.values import tensors  # noqa: E402

FILE = HERE / "core.json"
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
    from tiny_run import SETTINGS, built, play, without_times

    run = built(*SETTINGS[name])
    story = play(run)
    records = [without_times(record) for record in story.records]
    weights = [*run.module.state_dict().values()]
    losses = json.dumps([loss.hex() for loss in story.losses])
    kept = [{k: v for k, v in one.items() if not k.startswith("comm/")} for one in records]
    return [
        digest([*weights, losses, json.dumps(kept, sort_keys=True, default=str)]),
        *sent(run.link.ledger),
    ]


def world(setting: Setting, workers: int) -> Seen:
    """The means of three steps of a setting of the law table."""
    given = [[tensors(worker, step) for worker in range(workers)] for step in range(STEPS)]
    exchange = simulation(setting, workers, given[0][0])
    means: list[Tensor] = []
    for every in given:
        found = play_setting(exchange, setting, every)
        means += [found[name] for name in sorted(found)]
    return [digest(means), *sent(exchange.link.ledger)]


def law_worlds(setting: Setting) -> Mapping[str, Seen]:
    """Of each number of workers."""
    return {str(workers): world(setting, workers) for workers in WORLDS}


def everything(say: Callable[[str], object] = print) -> dict[str, Any]:
    """All hashes, computed here."""
    import core_loops
    from tiny_run import SETTINGS

    torch.set_num_threads(1)
    say("trainings")
    found: dict[str, Any] = {"machine": machine()}
    found["trainings"] = {name: training(name) for name in SETTINGS}
    say("worlds")
    found["worlds"] = {setting.name: law_worlds(setting) for setting in LAWS}
    say("loops")
    found["loops"] = core_loops.played(core_loops.WHOLE)
    say("sharded")
    found["sharded"] = core_loops.played(core_loops.SHARDED)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
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
