"""The rendezvous of a run's ranks before their first collective, and its errors when some are missing.

It is torch's TCPStore: that of the launcher (ours or torchrun's agent), else one in rank 0's process.
Torch's own errors are pages of C++ and name no rank, so this module tries ports and hosts first.

A store listens at the address that the ranks use and at no other: it has no authentication, and torch's own
listens on all interfaces whatever address it is given.

A rank that exits with a user's error records it here (`Rendezvous.refuse`), so that the other ranks exit too.
If only rank 0 has read the command line, it sends the others their instructions here.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from dgc_repro.errors import UserError

KEY = "launch.start_timeout_seconds"
HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True" where torchrun or our launcher hosts the store
START_SECONDS = 300.0  # the default of KEY, for ranks that have not seen a config yet
AGENT_SECONDS = 5.0  # the launcher's store is there before its ranks are
LOOK_EVERY_SECONDS = 0.05
# Rank 0 hosts the store: it stays so long for ranks that still have to read from it.
PATIENCE_SECONDS = 5.0
_INSTRUCTIONS, _REFUSED, _LEFT = "instructions of rank 0", "refused", "left"


class Rendezvous:
    """A store that all ranks share. ``start_seconds``: how long a rank waits for the others."""

    def __init__(self, start_seconds: float = START_SECONDS) -> None:
        """Connect; torchrun's environment variables give rank, size and address. Raises UserError."""
        self.rank = _number("RANK")
        self.size = _number("WORLD_SIZE")
        self.start_seconds = start_seconds
        self.arguments = sys.argv[1:]  # as given to this rank: Hydra and rank 0 change them later
        self._until = time.monotonic() + start_seconds
        host, port = _text("MASTER_ADDR"), _number("MASTER_PORT")
        self._of_agent = os.environ.get(HAS_STORE) == "True"
        self._here = self.rank == 0 and not self._of_agent
        if not self._here:
            self._wait_for_host(host, port)
        # A store of an agent outlives a start; each agent counts restarts for itself (`refuse_restarts`).
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if self._of_agent else "0"
        self.store = PrefixStore(f"dgc_repro/{attempt}", self._open(host, port))

    def wait_for_all(self, what: str, said: str = "") -> list[str]:
        """Return when all ranks have called it with ``what``: what each of them ``said``. Raises UserError
        naming those who have not within ``start_seconds``, or with what another rank has refused."""
        self.store.set(f"{what}/{self.rank}", said)
        missing = list(range(self.size))

        def all_came() -> bool:
            missing[:] = [r for r in missing if not self._has(f"{what}/{r}", missing)]
            if missing and self._has(_REFUSED, missing):
                raise UserError(self.store.get(_REFUSED).decode())
            return not missing

        if not poll(all_came, self.start_seconds):
            if self._here:  # the others read the reason from the store in this process
                time.sleep(min(PATIENCE_SECONDS, self.start_seconds))
            host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            here = f", for rank 0 {_resolved(host, port)[4][0]}" if self._here else ""
            raise UserError(
                f"{KEY}: {ranks(missing)} of {self.size} did not come ({what}) within "
                f"{self.start_seconds:g} s; look whether each was started and can reach {host}:{port}{here}, "
                "or wait longer"
            )
        answers = self.store.multi_get([f"{what}/{rank}" for rank in range(self.size)])
        return [answer.decode() for answer in answers]

    def refuse(self, message: str) -> None:
        """This rank ends with a user's error: so do those that wait for it, now or later."""
        with contextlib.suppress(dist.DistError):
            self.store.set(_REFUSED, message)

    def send_instructions(self, text: str) -> None:
        """As rank 0: what `receive_instructions` returns on the others."""
        self.store.set(_INSTRUCTIONS, text)

    def receive_instructions(self) -> str:
        """What rank 0 has sent. Raises UserError if it does not within ``start_seconds``."""
        if not poll(lambda: self._has(_INSTRUCTIONS, [0]), self.start_seconds):
            raise UserError(
                f"{KEY}: rank {self.rank} waited {self.start_seconds:g} s for rank 0 to read the "
                "command line; see what rank 0 said"
            )
        return str(self.store.get(_INSTRUCTIONS).decode())

    def leave(self) -> None:
        """Call before this rank ends with an error of the user's: rank 0 waits a moment for the others,
        so that all of them have read it and end by themselves."""
        with contextlib.suppress(UserError, dist.DistError):
            if self.rank != 0:
                self.store.set(f"{_LEFT}/{self.rank}", "")
                return
            others = range(1, self.size)
            poll(lambda: all(self._has(f"{_LEFT}/{r}", others) for r in others), PATIENCE_SECONDS)

    def _has(self, key: str, missing: Sequence[int]) -> bool:
        try:
            return bool(self.store.check([key]))
        except dist.DistError as error:
            raise UserError(
                f"{KEY}: rank 0, the rendezvous host, exited while this rank was waiting for "
                f"{ranks(missing)} of {self.size}; see what it said"
            ) from error

    def _wait_for_host(self, host: str, port: int) -> None:
        agent_until = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                socket.create_connection((host, port), timeout=1).close()
            except OSError as error:
                if self._of_agent and time.monotonic() > agent_until:
                    raise UserError(
                        f"MASTER_ADDR: the store at {host}:{port} does not answer rank {self.rank} "
                        f"({error.strerror or error}); the launcher (dgc_repro or torchrun) has ended, or "
                        "this node cannot reach that address (torchrun --local-addr of node 0 sets it)"
                    ) from error
                if time.monotonic() > self._until:
                    raise UserError(
                        f"{KEY}: rank {self.rank} waited {self.start_seconds:g} s for rank 0 at "
                        f"MASTER_ADDR:MASTER_PORT = {host}:{port} ({error.strerror or error}); start rank 0 "
                        "too, or mend the address"
                    ) from error
                time.sleep(LOOK_EVERY_SECONDS)
            else:
                return

    def _open(self, host: str, port: int) -> Store:
        made: list[Store] = []
        failed: list[BaseException] = []
        if self._here:
            store: Store = hosted_store(host, port, self.start_seconds)
            return store

        def connect() -> None:
            try:
                made.append(_store(host, port, self.start_seconds))
            except BaseException as error:
                failed.append(error)

        # In a thread: what listens there may be no store, and then torch waits without an end.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(max(1.0, self._until - time.monotonic()))
        if not made:
            reason = " ".join(str(failed[0]).split())[:200] if failed else "it does not answer"
            raise UserError(
                f"MASTER_PORT: the program at {host}:{port} is no torch rendezvous ({reason}); "
                "another program may use this port: take another, such as "
                f"MASTER_PORT={_next(port)}, for all ranks"
            ) from (failed[0] if failed else None)
        return made[0]


def ranks(numbers: Sequence[int]) -> str:
    """ "rank 1", "ranks 1, 3"; of many the first."""
    shown = ", ".join(str(number) for number in numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"


def poll(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until it is done, so long at most; whether it is."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_EVERY_SECONDS)
    return True


def hosted_store(host: str = "127.0.0.1", port: int = 0, seconds: float = START_SECONDS) -> Any:
    """A TCPStore in this process that listens at this address alone. Port 0 takes a free one. Raises
    UserError."""
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        return _store(host, port, seconds, listener.detach())


def use_loopback() -> None:
    """Have gloo and nccl listen on loopback, because all ranks are on this machine. By default gloo listens
    at the host name's address, and nccl on an interface to other machines. A choice that is made stays."""
    variables = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if names and not set(variables) & os.environ.keys():
        os.environ.update(dict.fromkeys(variables, names[0]))


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


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens at the address to which the host name resolves. Raises UserError."""
    try:
        family, kind, _, _, address = _resolved(host, port)
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
    except socket.gaierror as error:
        raise UserError(
            f"MASTER_ADDR: rank 0 finds no address of {host} ({error.strerror}); give rank 0's address"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f"MASTER_ADDR: {host} ({address[0]}) is no address of rank 0's machine, which hosts the "
                "rendezvous; give one that is, and that all ranks can reach"
            ) from error
        said = "in use" if error.errno == errno.EADDRINUSE else f"refused ({error.strerror})"
        raise UserError(
            f"MASTER_PORT: port {port} is {said} on this machine; take another, such as "
            f"MASTER_PORT={_next(port)}, for all ranks (torchrun --standalone finds one by itself)"
        ) from error
    return listener


def _resolved(host: str, port: str | int) -> tuple[Any, ...]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


def _next(port: int) -> int:
    return port + 1 if port < 65535 else 29500


def _text(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UserError(
            f"{name}: not set, and a rank finds the others by it; torchrun sets it, by hand give "
            "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT to each rank"
        )
    return value


def _number(name: str) -> int:
    text = _text(name)
    least, most = {"MASTER_PORT": (1, 65535), "WORLD_SIZE": (1, 10**6)}.get(name, (0, 10**6))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UserError(f"{name}: a whole number from {least} to {most}, got {text!r}")
    return int(text)
