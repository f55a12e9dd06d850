"""What must be the same on every rank: compared through the store of the rendezvous, before training.

Each rank states its facts. If one differs from rank 0's, all ranks end with the same line, which names the
fact, the nodes and the values.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dgc_repro import __version__
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.errors import UserError
from dgc_repro.launch.environment import torchvision_version
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.rendezvous import HAS_STORE, Rendezvous, ranks

Fact = str | list[str]
PACKAGE = Path(__file__).resolve().parent.parent
CLOCK_SECONDS = 10.0
"""How far the clock of a node may be from rank 0's. Time stamps of a record come from the node of rank 0,
which may be another one after a restart, and torch's c10d rendezvous takes a node for dead when its last
heartbeat looks 15 s old."""
CODE, DATA, DEVICE, VECTORS, NODE = "dgc_repro", "dataset", "launch.device", "CPU vectors", "node"
COMMAND_LINE, CONFIG, STORE = "command line", "config", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
SAME_VERSION = "install the same version on all nodes (constraints.txt)"
FIXES: Mapping[str, str] = {
    CODE: "install the same code on all nodes",
    "python": SAME_VERSION,
    "torch": SAME_VERSION,
    "torchvision": SAME_VERSION,
    COMMAND_LINE: "give the same arguments on all nodes",
    CONFIG: "a class of yours that the config names has another source file there; copy it to all nodes",
    DEVICE: "give the same launch.device and launch.backend to all nodes, such as launch.device=cpu",
    VECTORS: "rounding differs between them; set ATEN_CPU_CAPABILITY=avx2 on all nodes",
    STORE: "set it for torchrun on all nodes or on none",
    DATA: "that node has other data; copy dataset.root to all nodes, or name a shared folder",
}
"""What is compared, and what the user can do."""


def facts(config: Mapping[str, Any], device: str, arguments: Sequence[str]) -> dict[str, Fact]:
    """Those of this rank. ``device``: with its backend, in words; ``arguments``: the command line."""
    return {
        CODE: f"{__version__} (code {code_hash()})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision_version() or "not installed",
        COMMAND_LINE: sorted(arguments),
        CONFIG: config_hash(config),  # with the source of the user's own components
        DEVICE: device,
        VECTORS: torch.backends.cpu.get_cpu_capability() if device.startswith("cpu") else "",
        STORE: {"False": "1", "True": "0"}.get(os.environ.get(HAS_STORE, ""), "not set"),
    }


def code_hash() -> str:
    """Eight hex digits of this package's files."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".c", ".h", ".yaml"):
            digest.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def data_hash(splits: Splits | Text) -> str:
    """The data set's label, and eight hex digits of all that it has loaded."""
    digest = hashlib.sha256()
    for part in (splits.train, splits.validation, splits.test):
        tensors = [part] if isinstance(part, torch.Tensor) else [part.images, part.labels]
        for tensor in tensors:
            digest.update(tensor.cpu().contiguous().numpy().data)
    return f"{splits.label} ({digest.hexdigest()[:8]})"


def agree(rendezvous: Rendezvous, what: str, own: Mapping[str, Fact]) -> bool:
    """Wait for all ranks, and compare their facts; whether they are on several nodes. All ranks call it with
    the same ``what``. Raises UserError on all of them when a fact differs."""
    here = {NODE: platform.node(), "group": os.environ.get("GROUP_RANK", "0")}
    said = [json.loads(text) for text in rendezvous.wait_for_all(what, json.dumps({**own, **here}))]
    for name in own:
        values = [facts_of.get(name) for facts_of in said]
        refuse_difference(name, values, [facts_of[NODE] for facts_of in said])
    return len({(facts_of[NODE], facts_of["group"]) for facts_of in said}) > 1


def refuse_difference(name: str, values: Sequence[Fact | None], nodes: Sequence[str]) -> None:
    """Raise UserError when not all ranks have rank 0's value. ``nodes``: host names by rank."""
    first = values[0]
    others = [rank for rank, value in enumerate(values) if value != first]
    if not others:
        return
    other = values[others[0]]
    alike = [rank for rank in others if values[rank] == other]
    raise UserError(
        f"{name}: rank 0 on {nodes[0]} has {_shown(first, other)}, {ranks(alike)} on {nodes[alike[0]]} "
        f"{_shown(other, first)}; {FIXES[name]}"
    )


def _shown(value: Fact | None, other: Fact | None) -> str:
    """A value in words; of a list what the other one does not have."""
    if isinstance(value, list):
        value = " ".join(word for word in value if word not in (other or ()))
    return value or "nothing"


def agree_on_time(rendezvous: Rendezvous) -> None:
    """Compare the clocks of all ranks, right after another wait has ended on all of them. Raises UserError
    on all of them when one is more than `CLOCK_SECONDS` from rank 0's."""
    own = json.dumps([time.time(), platform.node()])
    said = [json.loads(text) for text in rendezvous.wait_for_all("clock", own)]
    ahead = [seconds - said[0][0] for seconds, _ in said]
    rank = max(range(len(ahead)), key=lambda rank: abs(ahead[rank]))
    if abs(ahead[rank]) > CLOCK_SECONDS:
        raise UserError(
            f"clock: rank {rank} on {said[rank][1]} is {abs(ahead[rank]):.0f} s "
            f"{'ahead of' if ahead[rank] > 0 else 'behind'} rank 0 on {said[0][1]}, at most "
            f"{CLOCK_SECONDS:g} s are allowed; synchronize the clocks of the nodes (chrony, NTP)"
        )
