"""What the ranks of a run say to each other beside training: where they meet, whether they are alike, and,
when a collective has failed, which of them is missing.

They use torch's TCPStore: that of the launcher (ours or torchrun's agent), else one in rank 0's process. A
store listens at the address that the ranks use and at no other: it has no authentication, and torch's own
listens on all interfaces whatever address it is given.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import hashlib
import json
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dgc_repro import __version__
from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.errors import UserError, full_disk
from dgc_repro.exchange.wire import CollectiveFailed, is_of_a_collective
from dgc_repro.launch.environment import torchvision_version
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import HAS_STORE

KEY = "launch.start_timeout_seconds"
START_SECONDS = 300.0  # the default of KEY, for ranks that have not seen a config yet
LOOK_EVERY_SECONDS = 0.05
PATIENCE_SECONDS = 5.0  # for others to read from a store in this process
ANSWER_SECONDS = 5.0  # that a rank has to say where it is
FOR_EVER = datetime.timedelta(days=1000)
CLOCK_SECONDS = 10.0
"""How far the clock of a node may be from rank 0's. Time stamps of a record come from the node of rank 0,
which may be another one after a restart, and torch's c10d rendezvous takes a node for dead when its last
heartbeat looks 15 s old."""
PACKAGE = Path(__file__).resolve().parent.parent
MOST_LETTERS = 300  # of an error's line
_REFUSED, _INSTRUCTIONS, _REPORT = "refused", "instructions", "report"


class Rendezvous:
    """A store that all ranks share. ``start_seconds``: how long a rank waits for the others."""

    def __init__(self, start_seconds: float = START_SECONDS) -> None:
        """Connect; torchrun's environment variables give rank, size and address. Raises UserError."""
        self.start_seconds = start_seconds
        self.arguments = sys.argv[1:]  # as given to this rank: Hydra and rank 0 change them later
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
        try:
            self.rank, self.size, port = (int(os.environ[name]) for name in names)
            self.place = f"{os.environ['MASTER_ADDR']}:{port}"
        except (KeyError, ValueError) as error:
            raise UserError(
                f"{', '.join(names)}, MASTER_ADDR: {error}; torchrun sets them, by hand set all of them"
            ) from error
        is_of_agent = os.environ.get(HAS_STORE) == "True"
        if self.rank == 0 and not is_of_agent:
            store = hosted_store(os.environ["MASTER_ADDR"], port, start_seconds)
        else:
            store = self._connected(os.environ["MASTER_ADDR"], port)
        # A store of an agent outlives a start; each agent counts restarts for itself (`refuse_restarts`).
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_of_agent else "0"
        self.store = PrefixStore(f"dgc_repro/{attempt}", store)

    def gather(self, what: str, said: str = "", seconds: float | None = None) -> list[str]:
        """What each rank ``said``, once all have called this with the same ``what``. Raises UserError naming
        those who have not within ``start_seconds``, or with what another rank has refused."""
        seconds = self.start_seconds if seconds is None else seconds
        keys = [f"{what}/{rank}" for rank in range(self.size)]
        missing = list(range(self.size))
        until = time.monotonic() + seconds
        with self._answering():
            self.store.set(keys[self.rank], said)
            while missing := [rank for rank in missing if not self.store.check([keys[rank]])]:
                if self.store.check([_REFUSED]):
                    raise UserError(self.store.get(_REFUSED).decode())
                if time.monotonic() > until:
                    raise UserError(
                        f"{KEY}: {ranks(missing)} of {self.size} did not come ({what}) within {seconds:g} s; "
                        f"look whether each was started and can reach {self.place}, or wait longer"
                    )
                time.sleep(LOOK_EVERY_SECONDS)
            return [text.decode() for text in self.store.multi_get(keys)]

    def refuse(self, message: str) -> None:
        """This rank ends with a user's error: so do those that wait for it, now or later."""
        with contextlib.suppress(dist.DistError):
            self.store.set(_REFUSED, message)

    def send_instructions(self, text: str) -> None:
        """As rank 0: what `receive_instructions` returns on the others."""
        self.store.set(_INSTRUCTIONS, text)

    def receive_instructions(self) -> str:
        """What rank 0 has sent. Raises UserError if it does not within ``start_seconds``."""
        patience = datetime.timedelta(seconds=self.start_seconds)
        with self._answering():
            self.store.wait([_INSTRUCTIONS], patience)
            return str(self.store.get(_INSTRUCTIONS).decode())

    def leave(self) -> None:
        """Call before this rank ends with an error of the user's: rank 0, which may host the store, waits a
        moment for the others."""
        with contextlib.suppress(UserError):
            self.gather("left", seconds=PATIENCE_SECONDS if self.rank == 0 else 0.0)

    def agree(self, what: str, own: Mapping[str, str]) -> bool:
        """Wait for all ranks, and compare their facts; whether they are on several nodes. All ranks call it
        with the same ``what``. Raises UserError on all of them when a fact differs from rank 0's."""
        here = [platform.node(), os.environ.get("GROUP_RANK", "0")]
        said = [json.loads(text) for text in self.gather(what, json.dumps([here, own]))]
        (node, _), first = said[0]
        for rank, ((other_node, _), other) in enumerate(said):
            for name, value in first.items():
                if other.get(name) != value:
                    raise UserError(
                        f"{name}: rank 0 on {node} has {value or 'nothing'}, rank {rank} on {other_node} "
                        f"{other.get(name) or 'nothing'}; it has to be the same on all nodes"
                    )
        return len({tuple(place) for place, _ in said}) > 1

    def agree_on_time(self) -> None:
        """Compare the clocks of all ranks, right after another wait has ended on all of them. Raises
        UserError on all of them where one is more than `CLOCK_SECONDS` from rank 0's."""
        times = [float(text) for text in self.gather("clock", repr(time.time()))]
        for rank, seconds in enumerate(times):
            if abs(seconds - times[0]) > CLOCK_SECONDS:
                raise UserError(
                    f"clock: rank {rank} is {seconds - times[0]:+.0f} s from rank 0, at most "
                    f"{CLOCK_SECONDS:g} s are allowed; synchronize the clocks of the nodes (chrony, NTP)"
                )

    def _connected(self, host: str, port: int) -> Store:
        """The store that another process hosts."""
        found: list[Store] = []
        failed: list[Exception] = []

        def connect() -> None:
            try:
                found.append(_store(host, port, self.start_seconds))
            except (dist.DistError, ValueError) as error:
                failed.append(error)

        # In a thread: if another program listens there, torch waits without an end.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(self.start_seconds + PATIENCE_SECONDS)
        if not found:
            raise UserError(
                f"{KEY}: rank {self.rank} finds no rendezvous at MASTER_ADDR:MASTER_PORT = {host}:{port} "
                f"within {self.start_seconds:g} s; start rank 0 too, or mend the address (another program "
                "may use this port)"
            ) from (failed[0] if failed else None)
        return found[0]

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise UserError where the process of the store has ended, or time is up."""
        try:
            yield
        except dist.DistError as error:
            raise UserError(
                f"{KEY}: rank {self.rank} got no answer from the rendezvous at {self.place}, which rank 0 or "
                f"its launcher hosts, within {self.start_seconds:g} s; see what rank 0 said"
            ) from error


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


def facts(config: Mapping[str, Any], device: str, arguments: Sequence[str]) -> dict[str, str]:
    """What must be the same on every rank before training, as this rank has it. ``device``: with its backend,
    in words; ``arguments``: the command line."""
    return {
        "dgc_repro": f"{__version__} (code {code_hash()})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision_version() or "not installed",
        "command line": " ".join(sorted(arguments)),
        "config, or the source of your own classes": config_hash(config),
        "launch.device": device,
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


class HangReport:
    """Report which ranks are missing and where they are, after a collective has failed and at no other time.

    On each rank a thread sleeps until some rank asks for a report. It then says where its rank is, even while
    the main thread hangs, and leaves the tracebacks of all threads in ``log``. A rank that is dead, stopped
    or cut off does not answer. ``where``: the rank's step (from 1; 0: before the first) and the collective
    for which it waits."""

    def __init__(
        self, store: Store, rank: int, size: int, timeout_seconds: float, log: TextIO | None = None
    ) -> None:
        self.where: Callable[[], tuple[int, str]] = lambda: (0, "")
        self._store = store.clone()
        self._listener_store = store.clone()  # a store serves one thread at a time
        self._rank = rank
        self._size = size
        self._limit = f"launch.timeout_seconds={timeout_seconds:g}"
        self._patience = min(ANSWER_SECONDS, timeout_seconds)
        self._log = log
        self._has_answered = threading.Lock()
        threading.Thread(target=self._listen, name="hang report", daemon=True).start()

    def failed(self, error: BaseException) -> str:
        """The line for a run that ends with this error on this rank. May wait for others' answers."""
        step, asked = self.where()
        broken = failed_collective(error)
        if broken is None:
            line = f"{one_line(error)} (rank {self._rank}, step {step})"
            self.leave(line)
            return line
        own = f"the {broken[0] or asked or 'collective'} {_at(step)}"
        answers = self._ask_all(own)
        for text in answers.values():
            if text.startswith("error: "):  # a rank that ended by itself is why others do not come
                return text.removeprefix("error: ")
        away = {rank: text for rank, text in answers.items() if text != own}
        details = f"{self._limit}; torch says: {broken[1]}"
        if not away:
            return (
                f"all ranks came to {own} and it did not end: the network is cut, or slower than "
                f"{self._limit} allows ({details})"
            )
        places = ", ".join(f"rank {rank} {text or NO_ANSWER}" for rank, text in away.items())
        return f"{ranks(list(away))} did not come to {own}: {places} ({details})"

    def leave(self, line: str) -> None:
        """Record the error with which this rank ends by itself, so that no other waits for its answer."""
        with contextlib.suppress(dist.DistError):
            self._answer(self._store, f"error: {line}")

    def _ask_all(self, own: str) -> dict[int, str]:
        answers = dict.fromkeys(range(self._size), "")
        with contextlib.suppress(dist.DistError):  # the store lived in a rank that is gone
            self._answer(self._store, own)
            self._store.set(_REPORT, "")
            until = time.monotonic() + self._patience
            while time.monotonic() < until and not all(answers.values()):
                for rank in (rank for rank, text in answers.items() if not text):
                    if self._store.check([f"{_REPORT}/{rank}"]):
                        answers[rank] = self._store.get(f"{_REPORT}/{rank}").decode()
                time.sleep(LOOK_EVERY_SECONDS)
        return answers | {self._rank: own}

    def _listen(self) -> None:
        with contextlib.suppress(Exception):  # the store is gone, and with it the rank that asked
            self._listener_store.wait([_REPORT], FOR_EVER)
            step, asked = self.where()
            busy = f"is between collectives of step {step} (tracebacks in launch.log)"
            self._answer(self._listener_store, f"the {asked} {_at(step)}" if asked else busy)
            if self._log is not None:
                faulthandler.dump_traceback(self._log)

    def _answer(self, store: Store, text: str) -> None:
        """Only the first answer counts: a rank that loses its peers while it is asked was not missing."""
        if self._has_answered.acquire(blocking=False):
            store.set(f"{_REPORT}/{self._rank}", text)


NO_ANSWER = "does not answer: killed, stopped or cut off"


def _at(step: int) -> str:
    return f"of step {step}" if step else "before the first step"


def one_line(error: BaseException) -> str:
    """An error's type and message; of a full disk, its file."""
    if full := full_disk(error, "a file"):
        return str(full)
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_LETTERS]


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
