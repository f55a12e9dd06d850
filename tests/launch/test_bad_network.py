"""A network that cannot be is one line that names the key, exit code 2, and no folder.

Through the command line's own handler, before any rank is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_run import TINY

from dgc_repro.errors import UserError
from dgc_repro.launch import main, single
from dgc_repro.launch.build import PROCESS_BYTES, check_processes

MISTAKES: list[tuple[Sequence[str], str, str]] = [
    # overrides, how the line begins, what it must also say
    (["network=ethernet_1gbt"], "network: no 'ethernet_1gbt'", "did you mean ethernet_1gbit?"),
    (["network=qqq"], "network: no 'qqq'", "there are: ethernet_100gbit, "),
    (["network.rate=100"], "network.rate: a rate with its unit, such as 100mbit", "got 100"),
    (["network.rate=100mb"], "network.rate: a rate with its unit", "units: bit, kbit, mbit"),
    (["network.rate=0mbit"], "network.rate: a rate with its unit", "above 0, got '0mbit'"),
    (["network.rate=-1mbit"], "network.rate: a rate with its unit", "got '-1mbit'"),
    (["network.rates=[1gbit]"], "network.rates: one for each worker, got 1 for 2", ""),
    (["network.rates=[1gbit,1gbit,1gbit]"], "network.rates: one for each worker, got 3", ""),
    (["network.rates=1gbit"], "network.rates: a list with a rate a worker", "got '1gbit'"),
    (["network.rates=[1gbit,fast]"], "network.rates: a rate with its unit", "got 'fast'"),
    (["network.rates=[]"], "network.rates: a list with a rate a worker", "got []"),
    (["network.latency=5"], "network.latency: a duration with its unit, such as 50us", "got 5"),
    (["network.latency=soon"], "network.latency: a duration with its unit", "got 'soon'"),
    (["network.loss=2"], "network.loss: a share of packets from 0, below 1, got 2", ""),
    (["network.loss=1"], "network.loss: a share of packets from 0, below 1, got 1", ""),
    (["network.loss=much"], "network.loss: a share of packets", "got 'much'"),
    (["network.schedule=100mbit"], "network.schedule: a list such as [{step: 500", "'100mbit'"),
    (["network.schedule=[100mbit]"], "network.schedule: each entry as {step: 500", "'100mbit'"),
    (["network.schedule=[{step:5}]"], "network.schedule: each entry as {step: 500", "{'step': 5}"),
    (
        ["network.schedule=[{step:-1,rate:1gbit}]"],
        "network.schedule: a step is a whole number from 0",
        "got -1",
    ),
    (
        ["network.schedule=[{step:5,rate:100}]"],
        "network.schedule: a rate with its unit",
        "got 100",
    ),
    (
        ["network.schedule=[{step:5,rate:1gbit},{step:5,rate:2gbit}]"],
        "network.schedule: steps ascend, each once",
        "",
    ),
    (["network.workers_per_node=4"], "network.workers_per_node: goes with node_rate", ""),
    (
        ["network.workers_per_node=1", "network.node_rate=1gbit"],
        "network.workers_per_node: a whole number from 2",
        "got 1",
    ),
    (["network.node_rate=fast"], "network.workers_per_node: goes with node_rate", ""),
    (["network.loss=0.1"], "network.loss: does nothing without a rate", "got 0.1 alone"),
    (["network.latency=1ms"], "network.latency: does nothing without a rate", "network.rate="),
    (["network.schedule=[{step:5,rate:1gbit}]"], "network.schedule: does nothing", "rate"),
    (
        ["network.rate=1gbit", "network.loss=0.5"],
        "network.loss: only a lab loses packets, launch=",
        "launch=netlab or network.loss=0, got 0.5",
    ),
    (
        ["launch.workers=4", "launch.workers_per_node=2", "network.rates=[1gbit,1gbit]"],
        "network.rates: one for each worker, got 2 for 4",
        "",
    ),
    (["network.rat=100mbit"], "network.rat: no such key", "did you mean network.rate?"),
    (["+network.speed=100mbit"], "network.speed: no such key", "rate"),
]


@pytest.mark.parametrize(
    ("overrides", "begins", "says"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES]
)
def test_a_mistake_in_a_network_is_one_line_and_nothing_is_left(
    overrides: Sequence[str],
    begins: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("ranks would be started")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(single, "execute", fail)
    monkeypatch.setattr(sys, "argv", ["dgc_repro", *TINY, *overrides])
    try:
        code = main.answer(main.dispatch)
    except SystemExit as end:  # from inside Hydra
        code = int(end.code or 0)
    lines = capsys.readouterr().err.splitlines()
    assert code == 2, lines
    assert len(lines) == 1, lines
    line = lines[0].removeprefix("error: ")
    assert line.startswith(begins), line
    assert says in line
    assert not (tmp_path / "runs").exists()


def test_more_processes_than_the_machine_has_memory_for() -> None:
    check_processes(4, 4 * PROCESS_BYTES)
    check_processes(4, None)
    with pytest.raises(UserError, match=r"^launch.workers: 5 processes take 1.8 GB.*simulated"):
        check_processes(5, 4 * PROCESS_BYTES)
