"""The network of a run: its modelled costs, and ``launch=netlab``: real runs between network namespaces, of
which nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PATHS, Command, wait_for
from labs import namespaces_of, need_a_lab
from ranks import processes_of
from tiny_run import TINY, configured

from dgc_repro.launch.main import answer
from dgc_repro.launch.networks import Schedule, modelled
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.ranks import Ranks, what_failed
from dgc_repro.launch.rules import validate
from dgc_repro.network import lab as lab_module
from dgc_repro.network.lab import Lab
from dgc_repro.train.meter import NoMeter

RUN = (
    *(*TINY, "launch=netlab", "launch.timeout_seconds=120", "dataset.train_size=640"),
    *("train.epochs=4", "sink.every_steps=1", "compressor=dense", "wrap=[]"),
)
GRAVAC = (
    *("train.epochs=1", "model.width=8", "compressor=dgc_sampled", "wrap=[error_feedback]"),
    *("policy=gravac", "policy.window=3", "policy.theta_min=4", "policy.eps=0.3"),
    *("network.rate=1gbit", "network.schedule=[{step: 4, rate: 20mbit}]"),
)
STEPS_PER_EPOCH = 20


def in_labs(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that makes labs."""
    needs = pytest.mark.usefixtures("a_lab")(test)
    return pytest.mark.slow(pytest.mark.timeout(600)(needs))


@pytest.fixture
def a_lab() -> None:
    need_a_lab()


def test_a_run_may_stand_for_one_of_more_workers_and_longer_messages() -> None:
    """Four simulated workers as the 32 of two levels: rings cross a node's link once a round."""
    given = (
        "launch=simulated",
        "launch.workers=4",
        "network=gcp_v100_32",
        "network.efficiency=1.0",
    )
    config = composed([*given, "network.as_workers=32", "network.message_scale=50"])
    cost = modelled(config, lambda: 0)
    assert cost is not None
    size, beta, alpha = 50 * 1_000_000, 8 / 10e9, 50e-6
    assert cost("allreduce", 1_000_000) == pytest.approx(2 * 31 * (alpha + size / 32 * beta))
    assert cost("allgather", 1_000_000) == pytest.approx(31 * (alpha + size * beta))


@in_labs
def test_a_run_in_a_lab_loses_its_launcher_and_a_rank_and_is_stopped(
    commands: Callable[..., Command],
) -> None:
    command = commands(*RUN, "network=ethernet_1gbit", "model.width=8")
    launcher = command.start().pid
    command.wait_for_step(STEPS_PER_EPOCH + 2)
    assert len(namespaces_of(launcher)) == 3  # two workers and the bridge between them
    command.process.kill()  # no handler of the launcher's can run
    command.process.communicate()
    wait_for(lambda: processes_of(command.runs) == {}, "the ranks to follow their launcher")
    wait_for(lambda: namespaces_of(launcher) == set(), "the lab to go")
    saved = command.steps_saved()[-1]
    assert saved >= STEPS_PER_EPOCH

    launcher = command.start().pid
    command.wait_for_step(saved + 3)
    os.kill(command.ranks()["1"], signal.SIGKILL)
    code, (line,) = command.end()
    assert code == 1
    assert line.startswith("error: ")
    assert "rank 1 was killed by SIGKILL" in line
    assert namespaces_of(launcher) == set()

    launcher = command.start().pid
    command.wait_for_step(saved + STEPS_PER_EPOCH + 2)
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == (143, ["error: stopped after a checkpoint; the same command continues"])
    assert namespaces_of(launcher) == set()
    folder = command.run_folder()
    facts = json.loads((folder / "environment.json").read_text())["network"]
    assert facts["rates"] == [1e9, 1e9]
    notes = (folder / "metrics.jsonl").read_text()
    assert facts["latency_seconds"] == 50e-6 or "the lab adds none of the 50 us" in notes
    # Sums over several processes, each counting what it sent, and of a ledger that was restored.
    summary = command.summary()
    assert summary["net/tx_bytes"] == pytest.approx(summary["net/expected_tx_bytes"], rel=0.02)
    assert summary["net/tx_bytes"] > summary["comm/total_wire_bytes"]


@in_labs
def test_counters_and_ledger_of_gravac_agree_whatever_branch_is_sent_at_whatever_rate(
    commands: Callable[..., Command],
) -> None:
    command = commands(*RUN, *GRAVAC)
    command.start()
    assert command.end() == (0, [])
    summary = command.summary()
    assert summary["net/tx_bytes"] == pytest.approx(summary["net/expected_tx_bytes"], rel=0.02)
    assert summary["comm/total_wire_bytes"] > 2e6  # or overheads would be all there is
    decisions = command.lines("decisions.jsonl")
    assert len(decisions) == summary["steps"]
    assert {line["decision/branch"] for line in decisions} == {"candidate", "theta_min"}
    assert all(line["decision/timed_seconds"] > 0 for line in decisions[1:])


def ranks_of(lab: Lab, folder: Path, program: str) -> Ranks:
    """Run a program as each rank of a lab to the end."""
    with (folder / "launch.log").open("w") as log:
        ranks = Ranks(folder, log, len(lab.rates), lab=lab)
        ranks.run([sys.executable, "-c", program], os.environ | PATHS)
    return ranks


def codes_of(ranks: Ranks) -> list[int]:
    return [process.returncode for process in ranks.processes]


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("started." + __import__("os").environ["RANK"], "w").close()
time.sleep(600)
"""


@in_labs
def test_a_lab_that_loses_a_namespace_ends_its_ranks_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dgc_repro.launch.ranks.KILL_AFTER_SECONDS", 0.2)
    with Lab([1e9, 1e9]) as lab:
        pid = lab.pids[2]

        def harm() -> None:
            wait_for(lambda: len(list(tmp_path.glob("started.*"))) == 2, "the ranks to start")
            os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=harm, daemon=True)
        thread.start()
        ranks = ranks_of(lab, tmp_path, DEAF)
        thread.join()
    assert codes_of(ranks) == [-signal.SIGKILL] * 2
    line = what_failed(tmp_path, ranks.ended())
    said = "the process that held the namespace of worker 1 was ended; no checkpoint yet"
    assert line.startswith(f"the lab has lost links: {said}, the same command starts again")
    assert "killed" not in line  # the ranks were, by the launcher
    assert namespaces_of(os.getpid()) == set()


STEPS = "network.schedule=[{step: 0, rate: 1gbit},{step: 3, rate: 100mbit},{step: 5, rate: 20mbit}]"
CHANGES = f"""
import os, pathlib, subprocess
from tiny_run import configured
from dgc_repro.launch.networks import Schedule
from dgc_repro.train.meter import NoMeter
def rates():
    shown = subprocess.run(["tc", "qdisc", "show", "dev", "eth0"], capture_output=True, text=True).stdout
    return shown.split("rate ")[1].split()[0]
rank = int(os.environ["RANK"])
config = configured("launch=netlab", "network.rate=10mbit", {STEPS!r})
if rank == 0:
    schedule = Schedule(config, rank, lambda: None, NoMeter())
    told = [rates()]
    schedule.before(4, first=True)
    for step in range(4, 7):
        schedule.before(step)
        told.append(rates())
    pathlib.Path("told.txt").write_text(" ".join(told))
"""


@in_labs
def test_rates_change_at_their_steps_in_a_run_that_is_continued(tmp_path: Path) -> None:
    with Lab([10e6, 10e6]) as lab:
        assert codes_of(ranks_of(lab, tmp_path, CHANGES)) == [0, 0]
        log = Path("launch.log").read_text()
    assert Path("told.txt").read_text() == "10Mbit 100Mbit 20Mbit 20Mbit", log


def test_all_ranks_wait_before_a_change_and_behind_it_and_outside_a_lab_nobody_does() -> None:
    waited: list[str] = []
    for launch, expected in [("netlab", 2), ("local", 0)]:
        config = configured(f"launch={launch}", "network.rate=1gbit", STEPS)
        schedule = Schedule(config, 1, lambda: waited.append("at a barrier"), NoMeter())
        for step, total in ((2, 0), (3, expected), (4, expected)):
            schedule.before(step)
            assert len(waited) == total
        waited.clear()


def test_unequal_links_are_accepted() -> None:
    rates = "network.rates=[1gbit,1gbit,100mbit]"
    validate(configured("launch=netlab", "launch.workers=3", rates))
    validate(configured("launch=local", "launch.workers=3", rates))


def test_the_command_says_what_it_has_removed_and_refuses_other_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = {"dgc-0-42-7-4026531836": 5}
    monkeypatch.setattr(lab_module, "clean", lambda: left)
    lab_module.command(["clean"])
    left.clear()
    lab_module.command(["clean"])
    assert capsys.readouterr().out.splitlines() == [
        "removed dgc-0-42-7-4026531836: 5 processes",
        "no lab is left over",
    ]
    assert answer(lambda: lab_module.command(["clear"])) == 2
    said = capsys.readouterr().err
    assert said == "error: netlab: python -m dgc_repro netlab clean, got clear\n"
