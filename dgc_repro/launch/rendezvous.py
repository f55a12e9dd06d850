"""What the ranks of a run say to each other beside training: where they meet, whether they are alike, and,
when a collective has failed, where each of them is.

They use torch's TCPStore: that of the launcher (ours or torchrun's agent), else one in rank 0's process. A
store listens at the address that the ranks use and at no other: it has no authentication, and torch's own
listens on all interfaces whatever address it is given.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dgc_repro import __version__
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.errors import MOST_LETTERS, UserError, one_line
from dgc_repro.exchange.collective import CollectiveFailed, is_of_a_collective
from dgc_repro.launch.environment import torchvision_version
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.ranks import HAS_STORE

KEY = "launch.start_timeout_seconds"
START_SECONDS = 300.0  # the default of KEY, for ranks that have not seen a config yet
LOOK_EVERY_SECONDS = 0.05
PATIENCE_SECONDS = 5.0  # for others to read from a store in this process
ANSWER_SECONDS = 5.0  # that a rank has to say where it is
CLOCK_SECONDS = 10.0
"""How far the clock of a node may be from rank 0's. Time stamps of a record come from the node of rank 0,
which may be another one after a restart, and torch's c10d rendezvous takes a node for dead when its last
heartbeat looks 15 s old."""
PACKAGE = Path(__file__).resolve().parent.parent
NO_ANSWER = "does not answer: killed, stopped, cut off or busy"
OWN = "error: "  # how a rank begins that has failed by itself
_REFUSED, _INSTRUCTIONS, _FAILED = "refused", "instructions", "failed"


class Rendezvous:
    """A store that all ranks share. ``start_seconds``: how long a rank waits for the others; ``where``: says
    the step of this rank (from 1; 0: before the first) and the collective for which it waits."""

    def __init__(self, start_seconds: float = START_SECONDS) -> None:
        """Connect; torchrun's environment variables give rank, size and address. Raises UserError."""
        self.start_seconds = start_seconds
        self.where: Callable[[], tuple[int, str]] = lambda: (0, "")
        self.several_nodes = False  # until `agree` has seen them
        self.arguments = sys.argv[1:]  # as given to this rank: Hydra and rank 0 change them later
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
        try:
            self.rank, self.size, port = (int(os.environ[name]) for name in names)
            host = os.environ["MASTER_ADDR"]
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{', '.join(names)}, MASTER_ADDR: {error}; torchrun sets them, by hand set all of them"
            ) from error
        self.place = f"{host}:{port}"
        is_of_agent = os.environ.get(HAS_STORE) == "True"
        if self.rank == 0 and not is_of_agent:
            store = hosted_store(host, port, start_seconds)
        else:
            store = self._connected(host, port)
        # A store of an agent outlives a start; each agent counts restarts for itself (`refuse_restarts`).
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_of_agent else "0"
        self.store = PrefixStore(f"dgc_repro/{attempt}", store)

    def gather(
        self,
        what: str,
        said: str = "",
        *,
        of: Sequence[int] | None = None,
        seconds: float | None = None,
    ) -> list[str]:
        """What each rank (or each ``of`` these) ``said``, once all have called this with the same ``what``.
        Raises UserError naming those who have not within ``start_seconds``, or with what another rank has
        refused."""
        seconds = self.start_seconds if seconds is None else seconds
        keys = {rank: f"{what}/{rank}" for rank in (range(self.size) if of is None else of)}
        missing = list(keys)
        until = time.monotonic() + seconds
        try:
            self.store.set(f"{what}/{self.rank}", said)
            while missing := [rank for rank in missing if not self.store.check([keys[rank]])]:
                if self.store.check([_REFUSED]):
                    raise UserError(self.store.get(_REFUSED).decode())
                if time.monotonic() > until:
                    raise UserError(
                        f"{KEY}: {ranks(missing)} of {self.size} did not come ({what}) within {seconds:g} s; "
                        f"look whether each was started and can reach {self.place}, or wait longer"
                    )
                time.sleep(LOOK_EVERY_SECONDS)
            return [text.decode() for text in self.store.multi_get(list(keys.values()))]
        except dist.DistError as error:
            raise UserError(
                f"{KEY}: rank {self.rank} got no answer from the rendezvous at {self.place}, which rank 0 or "
                "its launcher hosts; see what rank 0 said"
            ) from error

    def refuse(self, message: str) -> None:
        """End this rank with a user's error: so do those that wait for it, now or later."""
        with contextlib.suppress(dist.DistError):
            self.store.set(_REFUSED, message)

    def send_instructions(self, text: str) -> None:
        """As rank 0: what `receive_instructions` returns on the others."""
        self.store.set(f"{_INSTRUCTIONS}/0", text)

    def receive_instructions(self) -> str:
        """What rank 0 has sent. Raises UserError if it does not within ``start_seconds``."""
        return self.gather(_INSTRUCTIONS, of=[0])[0]

    def leave(self) -> None:
        """Call before this rank ends with an error of the user's: rank 0, which may host the store, waits a
        moment for the others."""
        with contextlib.suppress(UserError):
            self.gather("left", seconds=PATIENCE_SECONDS if self.rank == 0 else 0.0)

    def agree(self, what: str, own: Mapping[str, str]) -> None:
        """Wait for all ranks, and compare their facts and clocks. All ranks call it with the same ``what``.
        Raises UserError on all of them when a fact or the clock of one differs from rank 0's."""
        here = [platform.node(), os.environ.get("GROUP_RANK", "0")]
        said = [json.loads(text) for text in self.gather(what, json.dumps([here, own]))]
        times = [float(text) for text in self.gather(f"{what}: clock", repr(time.time()))]
        (node, _), first = said[0]
        for rank, ((other_node, _), other) in enumerate(said):
            for name, value in first.items():
                if other.get(name) != value:
                    raise UserError(
                        f"{name}: rank 0 on {node} has {value or 'nothing'}, rank {rank} on {other_node} "
                        f"{other.get(name) or 'nothing'}; it has to be the same on all nodes"
                    )
            if abs(late := times[rank] - times[0]) > CLOCK_SECONDS:
                raise UserError(
                    f"clock: rank {rank} is {late:+.0f} s from rank 0, at most {CLOCK_SECONDS:g} s are "
                    "allowed; synchronize the clocks of the nodes (chrony, NTP)"
                )
        self.several_nodes = len({tuple(place) for place, _ in said}) > 1

    def has_own_gpus(self, gpu: int) -> bool:
        """Compare GPUs with the other ranks, by the identifiers (UUID) and the places on a bus that the
        driver gives them; parts of one GPU (MIG) share a place. Returns whether each rank has its own GPU.
        ``gpu``: the number that this rank would take of those that it sees, which may be one for each rank
        (Slurm's ``--gpus-per-task``). All ranks call it. Raises UserError where a rank does not come."""
        own: list[str] = []
        if torch.cuda.is_available() and torch.cuda.device_count() > gpu:
            known: Any = torch.cuda.get_device_properties(gpu)
            place = (getattr(known, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
            own = [str(known.uuid), f"{platform.node()} {' '.join(map(str, place))}"]
        said = [json.loads(text) for text in self.gather("GPU", json.dumps(own))]
        return all(said) and all(len({*each}) == len(said) for each in zip(*said, strict=True))

    def failed(self, error: BaseException, timeout_seconds: float) -> str:
        """The line for a run that ends with this error on this rank.

        Where a collective has failed, it has failed on all ranks, and each says where it is. A rank that says
        nothing within 5 s is dead, stopped, cut off, or busy elsewhere."""
        step, asked = self.where()
        at = f"of step {step}" if step else "before the first step"
        is_users = isinstance(error, UserError)
        broken = None if is_users else failed_collective(error)
        if broken is None:
            own = f"{OWN}{error if is_users else one_line(error)} (rank {self.rank}, step {step})"
        else:
            own = f"the {broken[0] or asked or 'collective'} {at}"
        said = {self.rank: own}
        with contextlib.suppress(dist.DistError):  # the store lived in a rank that is gone
            self.store.set(f"{_FAILED}/{self.rank}", own)
            until = time.monotonic() + min(ANSWER_SECONDS, timeout_seconds)
            while broken and len(said) < self.size and time.monotonic() < until:
                for rank in set(range(self.size)) - said.keys():
                    if self.store.check([f"{_FAILED}/{rank}"]):
                        said[rank] = self.store.get(f"{_FAILED}/{rank}").decode()
                time.sleep(LOOK_EVERY_SECONDS)
        for text in said.values():
            if text.startswith(OWN):  # a rank that ended by itself is why others do not come
                return text.removeprefix(OWN)
        assert broken is not None
        details = f"launch.timeout_seconds={timeout_seconds:g}; torch says: {broken[1]}"
        away = [rank for rank in range(self.size) if said.get(rank) != own]
        if not away:
            return f"all ranks came to {own} and it did not end: the network is cut or too slow ({details})"
        places = ", ".join(f"rank {rank} {said.get(rank, NO_ANSWER)}" for rank in away)
        return f"{ranks(away)} did not come to {own}: {places} ({details})"

    def _connected(self, host: str, port: int) -> Store:
        """The store that another process hosts."""
        found: list[Store] = []

        def connect() -> None:
            with contextlib.suppress(dist.DistError, ValueError):
                found.append(_store(host, port, self.start_seconds))

        # In a thread: if another program listens there, torch waits without an end.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(self.start_seconds + PATIENCE_SECONDS)
        if not found:
            raise UserError(
                f"{KEY}: rank {self.rank} finds no rendezvous at MASTER_ADDR:MASTER_PORT = {host}:{port} "
                f"within {self.start_seconds:g} s; start rank 0 too, or mend the address (another program "
                "may use this port)"
            )
        return found[0]


def ranks(numbers: Sequence[int]) -> str:
    """ "rank 1", "ranks 1, 3"; of many the first."""
    shown = ", ".join(str(number) for number in numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def hosted_store(host: str = "127.0.0.1", port: int = 0, seconds: float = START_SECONDS) -> Any:
    """A TCPStore in this process that listens at this address alone. Port 0 takes a free one. Raises
    UserError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    except OSError as error:
        raise UserError(
            f"MASTER_ADDR, MASTER_PORT: rank 0 cannot listen at {host}:{port} ({error.strerror}); give an "
            "address of its machine that all ranks can reach, and a free port, to all ranks"
        ) from error
    with listener:
        return _store(host, listener.getsockname()[1], seconds, listener.detach())


def _store(host: str, port: int, seconds: float, listener: int | None = None) -> Any:
    """A TCPStore; ``listener``: of the one that hosts it, the descriptor of its listening socket."""
    return dist.TCPStore(  # type: ignore[attr-defined]  # in its __all__ all the same
        host,
        port,
        is_master=listener is not None,
        timeout=datetime.timedelta(seconds=seconds),
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listener,
    )


def use_loopback() -> None:
    """Have gloo and nccl listen on loopback, because all ranks are on this machine. By default gloo listens
    at the host name's address, and nccl on an interface to other machines. A choice that is made stays."""
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names and not set(variables) & os.environ.keys():
        os.environ.update(dict.fromkeys(variables, names[0]))


def facts(
    config: Mapping[str, Any], device: str, precision: str, arguments: Sequence[str]
) -> dict[str, str]:
    """What must be the same on every rank before training, as this rank has it. ``device``: with its backend,
    in words; ``precision``: in which it computes; ``arguments``: the command line."""
    return {
        "dgc_repro": f"{__version__} (code {code_hash()})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision_version() or "not installed",
        "command line": " ".join(sorted(arguments)),
        "config, or the source of your own classes": config_hash(config),
        "launch.device": device,
        "train.precision": precision,
        "CPU vectors (ATEN_CPU_CAPABILITY)": (  # rounding differs between AVX2 and AVX512
            torch.backends.cpu.get_cpu_capability() if device.startswith("cpu") else ""
        ),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": {"False": "1", "True": "0"}.get(
            os.environ.get(HAS_STORE, ""), ""
        ),
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


def failed_collective(error: BaseException | None) -> tuple[str, str] | None:
    """The collective that broke off with this error (empty where it was torch's own, while DDP is made), and
    the first sentence of torch's message. None where the error is this rank's own."""
    asked = ""
    while error is not None:
        if isinstance(error, CollectiveFailed):
            asked = error.asked
        elif is_of_a_collective(error):
            line = re.sub(r"^\[\S*\] ", "", str(error).strip().partition("\n")[0])
            return asked, line.partition(". ")[0][:MOST_LETTERS]
        error = error.__cause__
    return None
