"""A lab of shaped links on one machine: a network namespace a worker, joined by a bridge.

Each worker has an interface ``eth0``; its other end is a port of a bridge in a namespace of its own.
``tc tbf`` shapes both directions: ``eth0`` what a worker sends, the port what it is sent. Traffic has
nowhere else to go: the namespaces have no route out, and nothing of the lab is in the machine's own.

A namespace lives as long as a process is in it. Each one here is held by a shell that waits for its
standard input to close, which happens when the process that made the lab is gone, however it ended (the
bridge waits for the workers too): so nothing stays behind. All processes of a lab carry its id
(hash of its name, process id of its owner, that process's start, the pid namespace in which that is its
id) in their environment; `clean` finds by it what is left of labs whose owner is gone. The same works for
root and, through a user namespace, for others where the system allows that.

What is exact: rates (tbf charges every packet, headers of each included) and that they are each worker's
own. What is not: all workers share this machine's cores, so that a rate above what they can carry is
not reached; latency and loss need netem in the kernel.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dgc_repro.errors import UserError
from dgc_repro.network import counters
from dgc_repro.network.counters import Counters

LOWEST, HIGHEST = 10e6, 10e9  # bits a second
PACKET_BYTES = 1514  # Ethernet, MTU 1500
MOST_AT_ONCE = 43  # packets: 64 kB
MARK = "DGC_REPRO_LAB"  # the variable in the environment of all processes of a lab
CONGESTION = "cubic"
END_SECONDS = 5.0  # for what `clean` has killed
NOWHERE = "192.0.2.1/32"  # an address that nobody has (RFC 5737)
TO_MODEL = "or get a number from the model: python -m dgc_repro recommend"
_HOLD = "echo; while read -r _; do :; done"
_NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
_numbers = itertools.count()


class Lab:
    """Shaped links between ``len(rates)`` workers, until `close` or the end of ``with``.

    ``rates``: bits a second, one a worker, each way; ``latency``: seconds one way (a kernel without
    netem adds none, see ``notes``); ``loss``: share of packets; ``name``: whose lab it is.
    Raises UserError where this machine, or this user, cannot have a lab; ValueError that begins with
    the argument's name for a bad value.
    """

    interface = "eth0"

    def __init__(
        self, rates: Sequence[float], latency: float = 0.0, loss: float = 0.0, name: str = ""
    ) -> None:
        self.rates = check_rates("rate", rates)
        self.notes: list[str] = []
        digest = hashlib.sha256(f"{name} {next(_numbers)}".encode()).hexdigest()[:8]
        me = os.getpid()
        self.id = f"dgc-{digest}-{me}-{_started(me)}-{_pid_namespace()}"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[Any]] = []
        self._queues = [2] * len(self.rates)  # handles of tbf, by worker
        self._owner = os.getpid()
        for tool, package in _NEEDED.items():
            if shutil.which(tool) is None:
                raise UserError(
                    f"launch.kind: a lab needs `{tool}`, which is not here; install {package}, {TO_MODEL}"
                )
        self._user_namespace = _needs_user_namespace()
        try:
            self._hold("bridge")
            for rank in range(len(self.rates)):
                self._hold(f"worker{rank}")
            self._wire()
            self.latency, self.loss = self._delays(latency, loss)
            self._shape()
            self.congestion = self._route()
        except OSError as error:  # no more processes, open files, pipes
            self.close()
            raise UserError(
                f"launch.kind: the lab could not be made: {error.strerror}; {TO_MODEL}"
            ) from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def address(self, rank: int) -> str:
        """A worker's address, of the lab's own range."""
        host = rank + 1
        return f"10.187.{host // 250}.{host % 250 + 1}"

    def popen(self, rank: int, command: Sequence[str], **settings: Any) -> subprocess.Popen[Any]:
        """A process in a worker's namespace; ``settings`` as `subprocess.Popen` takes them.

        It is sent SIGTERM when the thread that started it ends, however it ended, and is killed by
        `close`.
        """
        environment = settings.pop("env", None) or os.environ
        bridge = self._holders[0].stdin
        assert bridge is not None
        process = subprocess.Popen(
            [*self._prefix(rank + 1), "setpriv", "--pdeathsig", "TERM", "--", *command],
            env=dict(environment) | {MARK: self.id},
            # The bridge is held until the last of them has ended.
            pass_fds=(*settings.pop("pass_fds", ()), bridge.fileno()),
            **settings,
        )
        self._started.append(process)
        return process

    def set_rates(self, rates: Sequence[float]) -> None:
        """Other rates from now on: the links are then as those of a lab made with these rates, its pieces
        and buckets too, also for connections that are open, which go on. Where a bucket gets smaller,
        packets that wait are dropped (TCP sends them again): larger than it, they could never pass."""
        rates = check_rates("rate", rates)
        if len(rates) != len(self.rates):
            raise ValueError(f"rates: one for each of {len(self.rates)} workers, got {len(rates)}")
        before, self.rates = self.rates, rates
        self._shape(before)

    def counters(self, rank: int) -> Counters:
        """What a worker's interface has sent and received."""
        return counters.read(self.interface, f"/proc/{self._holders[rank + 1].pid}/net/dev")

    def lost(self) -> str | None:
        """The namespace whose holder has ended, if there is one: the bridge's takes all links with it."""
        titles = ["the bridge", *(f"worker {rank}" for rank in range(len(self.rates)))]
        for title, holder in zip(titles, self._holders, strict=True):
            if holder.poll() is not None:
                return title
        return None

    def facts(self) -> dict[str, Any]:
        """What a record says of the lab."""
        return {
            "rates": list(self.rates),
            "latency_seconds": self.latency,
            "loss": self.loss,
            "congestion_control": self.congestion,
            "packets_at_once": [packets_at_once(rate) for rate in self.rates],
            "as": "a user namespace" if self._user_namespace else "root",
        }

    def close(self) -> None:
        """End every process in the lab; its namespaces go with them. May be called twice."""
        if os.getpid() != self._owner:  # a fork's copy is not the lab
            return
        for process in self._started:  # one that is just becoming another program shows no mark
            if process.poll() is None:
                process.kill()
        self._started.clear()
        for pid, found in _marked():
            if found == self.id:
                _kill(pid)
        for holder in self._holders:
            for stream in (holder.stdin, holder.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
            holder.kill()
            holder.wait()
        self._holders.clear()

    # How it is made.

    def _hold(self, title: str) -> None:
        """A process that holds a new namespace until its input closes."""
        if self._user_namespace and not self._holders:
            enter = ["unshare", "--user", "--map-root-user", "--net", "--"]
        elif self._user_namespace:
            enter = [*self._prefix(0, net=False), "unshare", "--net", "--"]
        else:
            enter = ["unshare", "--net", "--"]
        holder = subprocess.Popen(
            [*enter, "sh", "-c", _HOLD, f"{self.id}-{title}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {MARK: self.id},
            start_new_session=True,  # Ctrl-C is its owner's, who still has work to do in here
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"\n":  # it has not come into its namespace
            raise UserError(_not_allowed(holder.stderr.read().decode(errors="replace")))
        holder.stderr.close()

    def _prefix(self, index: int, *, net: bool = True) -> list[str]:
        user = ["--user", "--preserve-credentials"] if self._user_namespace else []
        into = [*user, *(["--net"] if net else [])]
        return ["nsenter", "--target", str(self._holders[index].pid), *into, "--"]

    def _batch(self, index: int, tool: str, lines: Sequence[str]) -> None:
        """Lines for ``ip`` or ``tc`` in a namespace. Raises UserError with the tool's own words."""
        done = self._run(index, [tool, "-batch", "-"], "\n".join(lines) + "\n")
        if done.returncode:
            raise UserError(
                f"launch.kind: the lab could not be made: {tool} said {in_one_line(done.stderr)!r} to "
                f"{failed_line(done.stderr, lines)!r}; {TO_MODEL}"
            )

    def _run(
        self, index: int, command: Sequence[str], text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        whole = [*self._prefix(index), *command]
        return subprocess.run(whole, input=text, capture_output=True, text=True, check=False)

    def _wire(self) -> None:
        """A bridge, and a cable to each worker."""
        # Without link-local addresses nobody says anything that was not asked for.
        plug = ["link add br0 type bridge mcast_snooping 0"]
        plug += ["link set br0 addrgenmode none", "link set br0 up"]
        for rank, holder in enumerate(self._holders[1:]):
            plug += [
                f"link add port{rank} type veth peer name {self.interface} netns {holder.pid}",
                f"link set port{rank} addrgenmode none",
                f"link set port{rank} master br0 up",
            ]
        self._batch(0, "ip", plug)
        for rank in range(len(self.rates)):
            up = [
                "link set lo up",
                f"link set {self.interface} addrgenmode none",
                f"link set {self.interface} up",
                f"addr add {self.address(rank)}/16 dev {self.interface}",
            ]
            self._batch(rank + 1, "ip", up)

    def _delays(self, latency: float, loss: float) -> tuple[float, float]:
        """Latency and loss that this kernel can add. Raises UserError for loss without netem."""
        probe = ["tc", "qdisc", "add", "dev", "lo", "root", "netem"]
        if not (latency or loss) or self._run(0, probe).returncode == 0:
            return latency, loss
        if loss:
            raise UserError(
                "network.loss: this kernel has no netem, so that the lab loses no packets; use "
                "network.loss=0, or a kernel with the module sch_netem"
            )
        self.notes.append(
            f"network.latency: this kernel has no netem, the lab adds none of the {latency * 1e6:g} us"
        )
        return 0.0, 0.0

    def _shape(self, before: Sequence[float] | None = None) -> None:
        """The rates, on both ends of every cable; pieces, latency and loss where a worker sends.

        ``before``: the rates until now, where there were some."""
        verb = "add" if before is None else "change"
        ports = []
        for rank, rate in enumerate(self.rates):
            self._pieces(rank, rate)
            lines = self._delay_lines(verb, rate)
            parent = "parent 1:1" if self.latency or self.loss else "root"
            shape = verb
            if before is not None and bucket(rate)[0] < bucket(before[rank])[0]:
                # A new queue in the place of the old: a handle of its own makes it one.
                shape = "replace"
                self._queues[rank] = 2 + (self._queues[rank] == 2)
            burst, limit = bucket(rate)
            tbf = f"tbf rate {round(rate)}bit burst {burst} limit {limit}"
            shaped = f"handle {self._queues[rank]}: {tbf}"
            lines.append(f"qdisc {shape} dev {self.interface} {parent} {shaped}")
            self._batch(rank + 1, "tc", lines)
            ports.append(f"qdisc {shape} dev port{rank} root {shaped}")
        self._batch(0, "tc", ports)

    def _pieces(self, rank: int, rate: float) -> None:
        """How large a piece a worker's kernel hands over. Connections know it from their route; they
        look their route up again once any route has changed."""
        self._batch(
            rank + 1,
            "ip",
            [
                f"link set {self.interface} gso_max_segs {packets_at_once(rate)}",
                f"route add blackhole {NOWHERE}",
                f"route del blackhole {NOWHERE}",
            ],
        )

    def _delay_lines(self, verb: str, rate: float) -> list[str]:
        if not self.latency and not self.loss:
            return []
        # Packets on their way: netem's own queue must hold them all.
        under_way = 1000 + int(2 * max(rate, LOWEST) * self.latency / 8 / PACKET_BYTES)
        delay = f"delay {round(self.latency * 1e6)}us" if self.latency else ""
        lost = f"loss {100 * self.loss:g}%" if self.loss else ""
        netem = f"netem limit {under_way} {delay} {lost}".rstrip()
        return [f"qdisc {verb} dev {self.interface} root handle 1: {netem}"]

    def _route(self) -> str:
        """One congestion control for all connections; which one it is."""
        for rank in range(len(self.rates)):
            address = self.address(rank)
            route = f"route replace 10.187.0.0/16 dev {self.interface} proto kernel scope link"
            line = f"{route} src {address} congctl {CONGESTION}".split()
            if self._run(rank + 1, ["ip", *line]).returncode:
                path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
                found = path.read_text(encoding="ascii").strip()
                self.notes.append(f"the lab's connections use {found}: {CONGESTION} is not here")
                return found
        return CONGESTION


def check_rates(field: str, rates: Sequence[float]) -> list[float]:
    """Rates that a lab can have, in bits a second. Raises ValueError."""
    if len(rates) < 1:
        raise ValueError("rates: one for each worker, got none")
    for rate in rates:
        if not LOWEST <= rate <= HIGHEST:
            raise ValueError(
                f"{field}: a lab has from {LOWEST / 1e6:g}mbit to {HIGHEST / 1e9:g}gbit, got "
                f"{rate / 1e6:g}mbit; {TO_MODEL}"
            )
    return [float(rate) for rate in rates]


def packets_at_once(rate: float) -> int:
    """How many packets of Ethernet the kernel hands over in one piece, to be cut at the end of the
    link, as a network card with segmentation offload does: about what the link carries in 0.5 ms.

    One (every packet is real) at 10 to 35 Mbit/s, 4 at 100 Mbit/s, 41 at 1 Gbit/s, 43 (64 kB) above:
    real packets at 100 Mbit/s would take a third of a core from every worker."""
    return max(1, min(MOST_AT_ONCE, round(rate * 0.5e-3 / 8 / PACKET_BYTES)))


def bucket(rate: float) -> tuple[int, int]:
    """(burst, limit) of tbf in bytes. The burst passes an idle link unshaped, so it is as small as the
    largest piece and a timer that comes 0.1 ms late allow; the limit is a queue of 100 ms, as a switch
    may have."""
    burst = packets_at_once(rate) * PACKET_BYTES + round(rate * 0.1e-3 / 8) + PACKET_BYTES
    return burst, max(round(rate * 0.1 / 8), 512 * 1024)


@dataclass(frozen=True)
class Removed:
    """What `clean` has ended of one lab."""

    lab: str
    namespaces: int
    processes: int


def clean() -> list[Removed]:
    """End what is left of labs whose owner is gone, and only that. Labs of other pid namespaces, as of a
    container, are left alone: whether their owner is there cannot be seen from here."""
    left: dict[str, list[int]] = {}
    for pid, lab in _marked():
        *_, owner, started, namespace = lab.split("-")
        if namespace == str(_pid_namespace()) and _started(int(owner)) != int(started):
            left.setdefault(lab, []).append(pid)
    removed = []
    for lab, pids in sorted(left.items()):
        spaces = set()
        for pid in pids:
            with contextlib.suppress(OSError):  # it has just ended
                spaces.add(os.readlink(f"/proc/{pid}/ns/net"))
        killed = [pid for pid in pids if _kill(pid)]
        end = time.monotonic() + END_SECONDS
        while any(_started(pid) for pid in killed) and time.monotonic() < end:
            time.sleep(0.01)
        removed.append(Removed(lab, len(spaces), len(killed)))
    return [one for one in removed if one.processes]


def in_one_line(text: str) -> str:
    """The first thing a tool complained of."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "nothing"


def failed_line(said: str, lines: Sequence[str]) -> str:
    """Of the lines of a batch the one that failed, as ip and tc tell: ``Command failed -:3``."""
    told = re.search(r"^Command failed .*:(\d+)\s*$", said, re.MULTILINE)
    number = int(told.group(1)) if told else 1
    return lines[min(number, len(lines)) - 1]


def _pid_namespace() -> int:
    """In which a process's own id is what `os.getpid` says."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> int:
    """Clock ticks from boot to the start of a process: with its id, that process and no later one. 0
    where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _marked() -> Iterator[tuple[int, str]]:
    """(process, lab) of all processes that carry a lab's id and may be looked at."""
    if os.readlink("/proc/self") != str(os.getpid()):
        return  # this /proc is another pid namespace's: its numbers are other processes here
    start = f"{MARK}=".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended, or is another user's
        for pair in pairs:
            lab = pair[len(start) :].decode(errors="replace")
            if pair.startswith(start) and lab.count("-") == 4 and lab.startswith("dgc-"):
                yield int(pid), lab


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _needs_user_namespace() -> bool:
    """Whether namespaces of one's own need a user namespace around them. Raises UserError where neither
    way is open."""
    for user in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *user, "--net", "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return bool(user)
    raise UserError(_not_allowed(done.stderr))


def _not_allowed(said: str) -> str:
    if not re.search("not permitted|denied", said):  # something else went wrong
        full = "No space left" in said
        limits = ": no namespace is left (user.max_user_namespaces, user.max_net_namespaces)"
        return (
            f"launch.kind: the lab could not be made: {in_one_line(said)}{limits if full else ''}; "
            f"{TO_MODEL}"
        )
    return (
        "launch.kind: a lab needs root, or a user namespace, which this system does not allow "
        f"({in_one_line(said)}); run as root, {TO_MODEL}"
    )
