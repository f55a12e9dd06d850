"""A lab on this machine: rates, addresses, counters, and that nothing of it stays behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from labs import namespaces_of, need_a_lab, processes_of

from dgc_repro.errors import UserError
from dgc_repro.network import lab as lab_module
from dgc_repro.network.counters import Counters, read
from dgc_repro.network.lab import Lab, bucket, clean, packets_at_once

ROOT = Path(__file__).resolve().parents[2]
RECEIVE = """
import socket
listening = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
come, _ = listening.accept()
print(sum(iter(lambda: len(come.recv(1 << 20)), 0)))
"""
FLOW = """
import socket, sys
to = socket.create_connection((sys.argv[1], 5000), timeout=60)
print("ready", flush=True)
for line in sys.stdin:
    to.sendall(bytes(int(line)))
    print("sent", flush=True)
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def lab() -> Iterator[Callable[..., Lab]]:
    need_a_lab()
    made: list[Lab] = []

    def make(*rates: float, **settings: float) -> Lab:
        made.append(Lab(rates, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_until(done: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def counters(one: Lab, rank: int) -> Counters:
    """What the interface of a worker has sent and received."""
    return read(one.interface, f"/proc/{one.pids[rank + 1]}/net/dev")


class Flow:
    """One connection between two workers, open over changes of the rates."""

    def __init__(self, one: Lab, source: int = 0, target: int = 1) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.receiver = one.popen(target, [sys.executable, "-c", RECEIVE], **pipes)
        self.wait(self.receiver, "ready")
        self.sender = one.popen(source, [sys.executable, "-c", FLOW, one.address(target)], **pipes)
        self.wait(self.sender, "ready")

    def wait(self, process: subprocess.Popen[str], word: str) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{word}\n"

    def send(self, size: int) -> None:
        assert self.sender.stdin is not None
        self.sender.stdin.write(f"{size}\n")
        self.sender.stdin.flush()

    def end(self, seconds: float) -> int:
        """How many bytes have come in all. Raises subprocess.TimeoutExpired."""
        self.sender.communicate(timeout=seconds)
        return int(self.receiver.communicate(timeout=seconds)[0])


def sent(one: Lab, source: int, target: int, size: int) -> float:
    """Seconds for ``size`` bytes over one connection."""
    flow = Flow(one, source, target)
    begin = time.perf_counter()
    flow.send(size)
    assert flow.end(30) == size
    return time.perf_counter() - begin


def test_a_link_is_no_faster_than_its_rate_and_the_counters_say_what_was_sent(
    lab: Callable[..., Lab],
) -> None:
    one = lab(20e6, 100e6)
    size = 1_000_000
    before = [counters(one, rank) for rank in range(2)]
    seconds = sent(one, 0, 1, size)
    assert seconds >= 8 * size / 20e6 * 0.95  # but for what waits in the bucket
    there, back = (counters(one, rank) - before[rank] for rank in range(2))
    assert size < there.tx_bytes < 1.06 * size  # headers: 66 bytes a packet of 1448
    assert there.tx_bytes == back.rx_bytes
    assert there.tx_packets == back.rx_packets
    assert there.tx_packets > size / 1514  # at 20 Mbit/s every packet is real

    one.set_rates([100e6, 10e6])  # now what worker 1 is sent is slowest: a slow receiver
    assert sent(one, 0, 1, size) >= 8 * size / 10e6 * 0.95


def shown(one: Lab) -> list[str]:
    """What the kernel says of the links of worker 0: queues but for their names, and pieces."""
    found = []
    for command in (["tc", "qdisc", "show"], ["ip", "-d", "link", "show"]):
        process = one.popen(0, [*command, "dev", "eth0"], stdout=subprocess.PIPE, text=True)
        found.append(process.communicate(timeout=20)[0])
    holder = one.pids[0]
    port = ["nsenter", "--target", str(holder), "--net", "tc", "qdisc", "show", "dev", "port0"]
    if not one.enter:
        found.append(subprocess.run(port, capture_output=True, text=True, check=True).stdout)
    queues = [text.split("root", 1)[1].strip() for text in (found[0], *found[2:])]
    return [*queues, found[1].split("gso_max_segs ")[1].split()[0]]


@pytest.mark.parametrize(
    ("made", "later"), [(20e6, 1e9), pytest.param(1e9, 100e6, marks=pytest.mark.slow)]
)
def test_a_lab_whose_rates_have_changed_is_the_lab_made_at_these_rates(
    made: float, later: float, lab: Callable[..., Lab]
) -> None:
    """A connection that is open, and sending, goes on, and sends the pieces of the new rate."""
    one, fresh = lab(made, made), lab(later, later)
    size = int(made / 8)  # a second
    flow = Flow(one)
    flow.send(size)
    wait_until(lambda: counters(one, 0).tx_bytes > size / 8, "the first bytes")
    one.set_rates([later, later])
    assert counters(one, 0).tx_bytes < size  # or nothing was under way
    # Headers are counted too: the last bytes come after ``size``, and buffers are then empty.
    wait_until(lambda: counters(one, 1).rx_bytes > size, "the last bytes", 60)
    seen = -1
    while seen != (seen := counters(one, 1).rx_bytes):
        time.sleep(0.3)
    for rate in (10e9, 20e6, later):
        one.set_rates([rate, rate])
    assert one.facts() == fresh.facts()
    assert shown(one) == shown(fresh)
    before = counters(one, 0)
    flow.send(4_000_000)
    assert flow.end(60) == size + 4_000_000
    full = 4_000_000 / 1448 / packets_at_once(later)
    # TCP is free in when it sends how much: pieces are not all full.
    assert full < (counters(one, 0) - before).tx_packets < 3 * full


def test_traffic_stays_inside(lab: Callable[..., Lab]) -> None:
    one = lab(1e9, 1e9)
    process = one.popen(1, ["ip", "route", "show"], stdout=subprocess.PIPE, text=True)
    routes = process.communicate()[0].splitlines()
    assert len(routes) == 1
    assert routes[0].startswith("10.187.0.0/16 dev eth0")
    assert one.congestion in routes[0]
    process = one.popen(0, ["ip", "-o", "addr"], stdout=subprocess.PIPE, text=True)
    assert "inet6 fe80" not in process.communicate()[0]
    assert one.facts()["congestion_control"] == one.congestion


def test_two_labs_do_not_collide_and_leave_nothing(lab: Callable[..., Lab]) -> None:
    first, second = lab(1e9, 1e9), lab(1e9, 1e9)
    assert first.id != second.id
    assert len(namespaces_of(os.getpid())) == 6
    slow = second.popen(0, ["sleep", "100"])
    with pytest.raises(ZeroDivisionError), first:
        raise ZeroDivisionError
    assert processes_of(first.id) == []
    assert slow.poll() is None
    assert sent(second, 0, 1, 10_000) >= 0
    second.close()
    assert slow.wait(5) == -signal.SIGKILL
    assert namespaces_of(os.getpid()) == set()


OWNER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest's processes may ignore it
from dgc_repro.network.lab import Lab
lab = Lab([1e9, 1e9])
if sys.argv[1:]:
    lab.popen(1, sys.argv[1:])
    time.sleep(0.3)
print(lab.id, flush=True)
time.sleep(100)
"""


def owner(*command: str, prefix: tuple[str, ...] = ()) -> tuple[subprocess.Popen[str], str]:
    """A process with a lab of two, in which ``command`` runs; the lab's id."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", OWNER, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_when_the_owner_is_stopped(number: int) -> None:
    need_a_lab()
    process, lab = owner("sleep", "100")
    assert len(processes_of(lab)) == 4
    process.send_signal(number)
    process.wait(10)
    wait_until(lambda: processes_of(lab) == [], "the lab to go")
    assert namespaces_of(process.pid) == set()


def test_clean_removes_what_a_dead_owner_left_and_only_that(lab: Callable[..., Lab]) -> None:
    living = lab(1e9)
    stays = living.popen(0, ["sleep", "100"])
    process, left = owner(sys.executable, "-c", IGNORES)
    process.kill()
    process.wait(10)
    time.sleep(0.2)
    assert (
        len(processes_of(left)) >= 2
    )  # the worker that would not stop, and the bridge it is held by
    removed = clean()
    assert processes_of(left) == []
    assert removed[left] >= 2
    assert living.id not in removed
    assert stays.poll() is None
    living.close()
    assert stays.wait(5) == -signal.SIGKILL
    assert left not in clean()


def test_clean_leaves_labs_of_other_pid_namespaces_alone() -> None:
    need_a_lab()
    into = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")
    if subprocess.run([*into, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespaces here")
    process, lab = owner("sleep", "100", prefix=into)
    try:
        assert len(processes_of(lab)) == 4
        assert lab not in clean()
        assert len(processes_of(lab)) == 4
    finally:
        process.kill()
        process.wait(10)
    wait_until(lambda: processes_of(lab) == [], "the lab to go")


IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(100)"


@pytest.mark.parametrize(("tool", "package"), [("tc", "iproute2"), ("nsenter", "util-linux")])
def test_a_missing_tool_is_one_line_with_its_package(
    tool: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ip", "tc", "unshare", "nsenter", "setpriv", "sh", "true"):
        if name != tool:  # on a machine without it any program stands in: nothing of it is started
            (tmp_path / name).symlink_to(shutil.which(name) or sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=f"^launch.kind: a lab needs `{tool}`.*install {package}"):
        Lab([1e9])


MADE = "launch.kind: the lab could not be made: "


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("unshare: unshare failed: Operation not permitted",
         "launch.kind: a lab needs root, or a user namespace, which this system does not allow (unshare: "
         "unshare failed: Operation not permitted); run as root, or get a number from the model: "
         "python -m dgc_repro recommend"),
        ("unshare: unshare failed: No space left on device",
         f"{MADE}unshare: unshare failed: No space left on device: no namespace is left "
         "(user.max_user_namespaces, user.max_net_namespaces); or get a number from"),
        ("sh: cannot fork", f"{MADE}sh: cannot fork; or get"),
    ],
)  # fmt: skip
def test_who_may_not_or_cannot_have_a_lab_is_told_why_and_what_else_there_is(
    said: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ip", "tc", "nsenter", "setpriv"):
        (tmp_path / name).symlink_to("/bin/true")
    (tmp_path / "unshare").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(UserError) as caught:
        Lab([1e9])
    assert str(caught.value).startswith(line)


def test_an_error_quotes_the_line_that_failed(lab: Callable[..., Lab]) -> None:
    one = lab(1e9)
    lines = ["link set lo up", "link set nothere up", "link set lo up"]
    with pytest.raises(UserError) as caught:
        one._batch(1, "ip", lines)
    assert "Cannot find device" in str(caught.value)
    assert "to 'link set nothere up'; " in str(caught.value)
    with pytest.raises(UserError, match="to 'qdisc add dev eth9 root pfifo'; "):
        one._batch(1, "tc", ["qdisc show dev eth0", "qdisc add dev eth9 root pfifo"])


def test_no_more_open_files_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    need_a_lab()

    def full(self: Lab) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(lab_module.Lab, "_hold", full)
    with pytest.raises(UserError, match=r"^launch.kind: the lab could not be made: Too many open"):
        Lab([1e9])


def test_a_process_that_ends_while_processes_are_listed_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux lists /proc/<number>, and asking for its files fails with ESRCH once the process has ended."""
    mine, stat = f"/proc/{os.getpid()}/environ", os.stat

    def ended(path: object, **more: bool) -> os.stat_result:
        if str(path) == mine:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), mine)
        return stat(path, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", ended)
    clean()


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def python_of_others() -> str:
    """A Python of this version that other users may run too."""
    for path in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        # Through env: setpriv itself still has root's rights when it starts a program.
        asked = [*AS_NOBODY, "env", path, "-c", "import dgc_repro"]
        with_ours = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            if (
                subprocess.run(asked, env=with_ours, capture_output=True, check=False).returncode
                == 0
            ):
                return path
        except OSError:
            continue
    pytest.skip("no Python here that another user may run, or this is not root")


def test_a_user_without_rights_has_a_lab_through_a_user_namespace() -> None:
    python = python_of_others()
    program = """
import subprocess, sys
from dgc_repro.errors import UserError
from dgc_repro.network.counters import read
from dgc_repro.network.lab import Lab
try:
    with Lab([1e8, 1e8]) as lab:
        said = lab.popen(1, ["ip", "-o", "route"], stdout=subprocess.PIPE).communicate()[0]
        ping = "import socket; socket.create_connection((%r, 1), timeout=5)" % lab.address(0)
        error = lab.popen(1, [sys.executable, "-c", ping], stderr=subprocess.PIPE).communicate()[1]
        print(lab.facts()["as"], b"10.187" in said, b"ConnectionRefused" in error or error)
        print(read(lab.interface, f"/proc/{lab.pids[2]}/net/dev").tx_packets > 0)
    print(lab.id)
except UserError as error:
    print("refused", error)
"""
    done = subprocess.run(
        [*AS_NOBODY, python, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    if done.stdout.startswith("refused"):
        pytest.skip(done.stdout.strip())
    facts, counted, lab = done.stdout.splitlines()
    assert (facts, counted) == ("a user namespace True True", "True"), done.stderr
    assert processes_of(lab) == []


def test_no_workers_and_another_number_of_rates_are_refused(lab: Callable[..., Lab]) -> None:
    with pytest.raises(ValueError, match=r"^rates: one for each worker, got none"):
        Lab([])
    with pytest.raises(ValueError, match=r"^rates: one for each of 1 workers, got 2"):
        lab(1e9).set_rates([1e9, 1e9])


def test_pieces_and_buckets_grow_with_the_rate() -> None:
    assert [packets_at_once(rate) for rate in (1e7, 1e8, 1e9, 1e10)] == [1, 4, 41, 43]
    for rate in (1e7, 1e8, 1e9, 1e10):
        burst, limit = bucket(rate)
        assert packets_at_once(rate) * 1514 < burst < limit
        most = 3e-3 if rate < 1e8 else 0.8e-3
        assert burst / (rate / 8) < most, rate  # seconds that pass unshaped


def test_latency_without_netem_is_a_note_and_loss_is_refused(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_netem(self: Lab, index: int, command: list[str], text: str = "") -> object:
        if "netem" in command:
            return subprocess.CompletedProcess(command, 2, "", "unknown")
        return run(self, index, command, text)

    run = Lab._run
    monkeypatch.setattr(lab_module.Lab, "_run", no_netem)
    one = lab(1e9, latency=50e-6)
    assert one.latency == 0
    assert one.notes == [
        "network.latency: this kernel has no netem, the lab adds none of the 50 us"
    ]
    one.close()
    with pytest.raises(UserError, match=r"^network.loss: this kernel has no netem"):
        lab(1e9, loss=0.01)
    assert namespaces_of(os.getpid()) == set()


def test_latency_and_loss_stand_before_the_rate_where_there_is_netem(
    lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What tc is told; whether this kernel knows netem or not.
    told: list[list[str]] = []
    run = Lab._run

    def noted(self: Lab, index: int, command: list[str], text: str = "") -> object:
        if command[0] == "tc":
            told.append(text.splitlines())
            return subprocess.CompletedProcess(command, 0, "", "")
        return run(self, index, command, text)

    monkeypatch.setattr(lab_module.Lab, "_run", noted)
    one = lab(1e8, latency=1e-3, loss=0.01)
    worker = next(lines for lines in told if len(lines) == 2)
    assert worker[0] == "qdisc add dev eth0 root handle 1: netem limit 1016 delay 1000us loss 1%"
    assert worker[1].startswith("qdisc add dev eth0 parent 1:1 handle 2: tbf rate 100000000bit")
    assert (one.latency, one.loss, one.notes) == (1e-3, 0.01, [])
    told.clear()
    one.set_rates([1e9])  # ten times as many packets are on their way
    worker = next(lines for lines in told if len(lines) == 2)
    assert worker[0] == "qdisc change dev eth0 root handle 1: netem limit 1165 delay 1000us loss 1%"
    assert worker[1].startswith("qdisc change dev eth0 parent 1:1 handle 2: tbf rate 1000000000bit")
