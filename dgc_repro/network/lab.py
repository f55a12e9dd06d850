"""A lab of shaped links on one machine: a network namespace a worker, joined by a bridge.

Each worker has an interface ``eth0``; its other end is a port of a bridge in a namespace of its own.
``tc tbf`` shapes both directions: ``eth0`` what a worker sends, the port what it is sent. The namespaces
have no route out, and nothing of the lab is in the machine's own.

A shell holds each namespace and waits for its standard input to close, which happens when the process that
made the lab is gone, however it ended (the bridge waits for the workers too). All processes of a lab carry
its id (process id and start of its owner, the pid namespace of that id) in their environment; `clean` finds
by it what is left of labs whose owner is gone. Users other than root get a user namespace around the lab,
where the system allows that.

Rates are exact (tbf charges every packet, its headers included), and each worker has its own. All workers
share this machine's cores, so that a rate above what they can carry is not reached. Latency and loss need
netem in the kernel.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from dgc_repro.errors import UserError

LOWEST, HIGHEST = 10e6, 10e9  # bits a second
PACKET_BYTES = 1514  # Ethernet, MTU 1500
MOST_AT_ONCE = 43  # packets: 64 kB
MARK = "DGC_REPRO_LAB"  # the id of the lab, in the environment of all its processes
DESCRIPTION = "DGC_REPRO_LAB_DESCRIPTION"  # in that of its workers: see `description`
CONGESTION = "cubic"
END_SECONDS = 5.0  # for what `clean` has killed
NOWHERE = "192.0.2.1/32"  # an address that nobody has (RFC 5737)
TO_MODEL = "or get a number from the model: python -m dgc_repro recommend"
_MADE = "launch.kind: the lab could not be made: "
_HOLD = "echo; while read -r _; do :; done"
_TOOLS = {"ip": "iproute2", "tc": "iproute2"} | dict.fromkeys(
    ("unshare", "nsenter", "setpriv"), "util-linux"
)
_numbers = itertools.count()


class Links:
    """The links of a lab, for a process that may change their rates: its owner or one of its workers.

    ``pids``: of the processes that hold the namespaces, the bridge's first; ``rates``: bits a second, one a
    worker, each way; ``latency``: seconds one way; ``loss``: share of packets; ``enter``: more options of
    nsenter. Raises ValueError that begins with the argument's name for a bad rate."""

    interface = "eth0"

    def __init__(
        self,
        pids: Sequence[int],
        rates: Sequence[float],
        latency: float,
        loss: float,
        enter: Sequence[str] = (),
    ) -> None:
        self.pids = list(pids)
        self.rates = check_rates("rate", rates)
        self.latency = latency
        self.loss = loss
        self.enter = enter
        self._queues = [2] * len(self.rates)  # handles of tbf, by worker

    def set_rates(self, rates: Sequence[float]) -> None:
        """Change the rates: the links are then those of a lab made with these rates, pieces and buckets
        included. Open connections go on. Where a bucket gets smaller, packets that wait are dropped (TCP
        sends them again): larger than the bucket, they could never pass."""
        rates = check_rates("rate", rates)
        if len(rates) != len(self.rates):
            raise ValueError(f"rates: one for each of {len(self.rates)} workers, got {len(rates)}")
        before, self.rates = self.rates, rates
        self._shape(before)

    def _shape(self, before: Sequence[float] | None = None) -> None:
        """Set the rates on both ends of every cable; pieces, latency and loss where a worker sends.
        ``before``: the rates until now, where there were some."""
        verb = "add" if before is None else "change"
        ports = []
        for rank, rate in enumerate(self.rates):
            # A connection looks its route up again, and with it the size of pieces, once any has changed.
            pieces = f"link set {self.interface} gso_max_segs {packets_at_once(rate)}"
            forget = [f"route {action} blackhole {NOWHERE}" for action in ("add", "del")]
            self._batch(rank + 1, "ip", [pieces, *forget])
            burst, limit = bucket(rate)
            shape = verb
            if before is not None and burst < bucket(before[rank])[0]:
                shape = "replace"  # by a new queue: a handle of its own makes it one
                self._queues[rank] = 2 + (self._queues[rank] == 2)
            tbf = f"handle {self._queues[rank]}: tbf rate {round(rate)}bit burst {burst} limit {limit}"
            lines, parent = [], "root"
            if self.latency or self.loss:  # netem's own queue holds all packets under way
                under_way = 1000 + int(2 * rate * self.latency / 8 / PACKET_BYTES)
                delay = f" delay {round(self.latency * 1e6)}us" if self.latency else ""
                lost = f" loss {100 * self.loss:g}%" if self.loss else ""
                netem = f"root handle 1: netem limit {under_way}{delay}{lost}"
                lines, parent = [f"qdisc {verb} dev {self.interface} {netem}"], "parent 1:1"
            self._batch(
                rank + 1, "tc", [*lines, f"qdisc {shape} dev {self.interface} {parent} {tbf}"]
            )
            ports.append(f"qdisc {shape} dev port{rank} root {tbf}")
        self._batch(0, "tc", ports)

    def _inside(self, index: int, *, net: bool = True) -> list[str]:
        """The beginning of a command that runs in a namespace; 0 is the bridge's."""
        into = [*self.enter, *(["--net"] if net else [])]
        return ["nsenter", "--target", str(self.pids[index]), *into, "--"]

    def _batch(self, index: int, tool: str, lines: Sequence[str]) -> None:
        """Give ``ip`` or ``tc`` lines in a namespace. Raises UserError with the tool's own words."""
        done = self._run(index, [tool, "-batch", "-"], "\n".join(lines) + "\n")
        if done.returncode:
            told = re.search(r"^Command failed .*:(\d+)\s*$", done.stderr, re.MULTILINE)
            line = lines[min(int(told[1]) if told else 1, len(lines)) - 1]
            raise UserError(
                f"{_MADE}{tool} said {first_line(done.stderr)!r} to {line!r}; {TO_MODEL}"
            )

    def _run(
        self, index: int, command: Sequence[str], text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        whole = [*self._inside(index), *command]
        return subprocess.run(whole, input=text, capture_output=True, text=True, check=False)


class Lab(Links):
    """Shaped links between ``len(rates)`` workers, until `close` or the end of ``with``.

    A kernel without netem adds no latency, see ``notes``. Raises UserError where this machine, or this
    user, cannot have a lab; ValueError that begins with the argument's name for a bad value.
    """

    def __init__(self, rates: Sequence[float], latency: float = 0.0, loss: float = 0.0) -> None:
        super().__init__([], rates, latency, loss)
        self.notes: list[str] = []
        self._owner = os.getpid()
        owner = f"{self._owner}-{_started(self._owner)}-{_pid_namespace()}"
        self.id = f"dgc-{next(_numbers)}-{owner}"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[Any]] = []
        for tool, package in _TOOLS.items():
            if shutil.which(tool) is None:
                raise UserError(
                    f"launch.kind: a lab needs `{tool}`, which is not here; install {package}, {TO_MODEL}"
                )
        if _needs_user_namespace():
            self.enter = ("--user", "--preserve-credentials")
        try:
            for _ in range(1 + len(self.rates)):
                self._hold()
            self._wire()
            self._check_netem()
            self._shape()
            self.congestion = self._route()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):  # no more processes, open files, pipes
                raise UserError(f"{_MADE}{error.strerror}; {TO_MODEL}") from error
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
        """Start a process in a worker's namespace; ``settings`` as `subprocess.Popen` takes them.

        It is sent SIGTERM when the thread that started it ends, however it ended, and is killed by
        `close`.
        """
        environment = dict(settings.pop("env", None) or os.environ)
        description = {"pids": self.pids, "facts": self.facts(), "notes": self.notes}
        bridge = self._holders[0].stdin
        assert bridge is not None
        process = subprocess.Popen(
            [*self._inside(rank + 1), "setpriv", "--pdeathsig", "TERM", "--", *command],
            env=environment
            | {MARK: self.id, DESCRIPTION: json.dumps(description)}
            | {"GLOO_SOCKET_IFNAME": self.interface},
            # The bridge is held until the last of them has ended.
            pass_fds=[bridge.fileno(), *settings.pop("pass_fds", ())],
            **settings,
        )
        self._workers.append(process)
        return process

    def lost(self) -> str | None:
        """The namespace whose holder has ended, if there is one: the bridge's takes all links with it."""
        ended = [index for index, one in enumerate(self._holders) if one.poll() is not None]
        return (f"worker {ended[0] - 1}" if ended[0] else "the bridge") if ended else None

    def facts(self) -> dict[str, Any]:
        """What a record says of the lab."""
        return {
            "rates": list(self.rates),
            "latency_seconds": self.latency,
            "loss": self.loss,
            "congestion_control": self.congestion,
            "packets_at_once": [packets_at_once(rate) for rate in self.rates],
            "as": "a user namespace" if self.enter else "root",
        }

    def close(self) -> None:
        """End every process in the lab; its namespaces go with them. May be called twice."""
        if os.getpid() != self._owner:  # a fork's copy is not the lab
            return
        for process in self._workers:  # one that is just becoming another program shows no mark
            if process.poll() is None:
                process.kill()
        self._workers.clear()
        for pid, found in _marked():
            if found == self.id:
                _kill(pid)
        for holder in self._holders:
            for stream in filter(None, (holder.stdin, holder.stdout)):
                with contextlib.suppress(OSError):
                    stream.close()
            holder.kill()
            holder.wait()
        self._holders.clear()

    # How it is made.

    def _hold(self) -> None:
        """Start a process that holds a new namespace until its input closes."""
        within, new = [], ["--net"]
        if self.enter and self._holders:
            within = self._inside(0, net=False)
        elif self.enter:
            new = ["--user", "--map-root-user", "--net"]
        holder = subprocess.Popen(
            [*within, "unshare", *new, "--", "sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {MARK: self.id},
            start_new_session=True,  # Ctrl-C is its owner's, who still has work to do in here
        )
        self._holders.append(holder)
        self.pids.append(holder.pid)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"\n":  # it has not come into its namespace
            raise UserError(_not_allowed(holder.stderr.read().decode(errors="replace")))
        holder.stderr.close()

    def _wire(self) -> None:
        """Make a bridge, and a cable to each worker. Without link-local addresses nobody says anything that
        was not asked for."""
        plug = ["link add br0 type bridge mcast_snooping 0"]
        plug += ["link set br0 addrgenmode none", "link set br0 up"]
        for rank, pid in enumerate(self.pids[1:]):
            plug += [
                f"link add port{rank} type veth peer name {self.interface} netns {pid}",
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

    def _check_netem(self) -> None:
        """Leave latency out, with a note, where this kernel cannot add it; raise UserError for loss."""
        probe = ["tc", "qdisc", "add", "dev", "lo", "root", "netem"]
        if not (self.latency or self.loss) or self._run(0, probe).returncode == 0:
            return
        if self.loss:
            raise UserError(
                "network.loss: this kernel has no netem, so that the lab loses no packets; use "
                "network.loss=0, or a kernel with the module sch_netem"
            )
        self.notes.append(
            f"network.latency: this kernel has no netem, the lab adds none of the {self.latency * 1e6:g} us"
        )
        self.latency = 0.0

    def _route(self) -> str:
        """Set one congestion control for all connections; return its name."""
        for rank in range(len(self.rates)):
            route = f"route replace 10.187.0.0/16 dev {self.interface} proto kernel scope link"
            line = f"{route} src {self.address(rank)} congctl {CONGESTION}"
            if self._run(rank + 1, ["ip", *line.split()]).returncode:
                path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
                found = path.read_text(encoding="ascii").strip()
                self.notes.append(f"the lab's connections use {found}: {CONGESTION} is not here")
                return found
        return CONGESTION


def description() -> dict[str, Any]:
    """What a worker of a lab knows of it: ``pids`` of the holders, ``facts`` for the record, ``notes``. Empty
    outside a lab."""
    found: dict[str, Any] = json.loads(os.environ.get(DESCRIPTION, "{}"))
    return found


def links_here() -> Links:
    """The links of the lab that this process is a worker of."""
    lab = description()
    facts = lab["facts"]
    return Links(lab["pids"], facts["rates"], facts["latency_seconds"], facts["loss"])


def check_rates(field: str, rates: Sequence[float]) -> list[float]:
    """Return rates that a lab can have, in bits a second. Raises ValueError."""
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


def clean() -> dict[str, int]:
    """End what is left of labs whose owner is gone, and only that: processes ended, by lab. Labs of other
    pid namespaces, as of a container, are left alone: whether their owner is there cannot be seen from
    here."""
    killed: dict[str, list[int]] = {}
    for pid, lab in _marked():
        *_, owner, started, namespace = lab.split("-")
        is_gone = namespace == str(_pid_namespace()) and _started(int(owner)) != int(started)
        if is_gone and _kill(pid):
            killed.setdefault(lab, []).append(pid)
    end = time.monotonic() + END_SECONDS
    while any(map(_started, itertools.chain(*killed.values()))) and time.monotonic() < end:
        time.sleep(0.01)
    return {lab: len(pids) for lab, pids in killed.items()}


def command(arguments: Sequence[str]) -> None:
    """``python -m dgc_repro netlab clean``. Raises UserError for anything else."""
    if {"-h", "--help"} & set(arguments):
        print("usage: python -m dgc_repro netlab clean")
        return
    if list(arguments) != ["clean"]:
        given = " ".join(arguments) or "nothing"
        raise UserError(f"netlab: python -m dgc_repro netlab clean, got {given}")
    removed = [f"removed {lab}: {number} processes" for lab, number in clean().items()]
    print("\n".join(removed) or "no lab is left over")


def first_line(text: str) -> str:
    """The first thing a tool complained of."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing")


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
    mark = re.compile(rf"(?:^|\0){MARK}=(dgc-\d+-\d+-\d+-\d+)(?:\0|$)".encode())
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if found := mark.search(Path(f"/proc/{pid}/environ").read_bytes()):
                yield int(pid), found[1].decode()


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
    why = first_line(said)
    if re.search("not permitted|denied", said):
        return (
            "launch.kind: a lab needs root, or a user namespace, which this system does not allow "
            f"({why}); run as root, {TO_MODEL}"
        )
    if "No space left" in said:
        why += ": no namespace is left (user.max_user_namespaces, user.max_net_namespaces)"
    return f"{_MADE}{why}; {TO_MODEL}"
