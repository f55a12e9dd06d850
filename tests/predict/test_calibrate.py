"""``calibrate``: live workers are timed, a profile is written, and the next command reads it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import composed, read_profile
from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Point
from dgc_repro.network.profile import Network
from dgc_repro.predict.calibrate import MEASURED, calibrate, measure

QUICK = ("sizes=1kb,64kb,1mb", "repeats=3", "seconds=1", "launch.device=cpu")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of two live workers on loopback."""
    return calibrate([*QUICK, f"paths.runs={tmp_path_factory.mktemp('runs')}", "name=here"])


def test_the_profile_is_a_network_with_its_points_beside_it(profile: Path) -> None:
    network = Network(**read_profile(profile))
    assert network.outer_at(0, 2).rate > 1e7
    assert set(network.software or {}) == set(MEASURED)
    assert "2 workers, gloo on this machine" in network.source
    head = profile.read_text(encoding="utf-8").splitlines()[:6]
    assert all(line.startswith("#") for line in head)
    assert "12 points; error of the fit: median" in head[1]
    with profile.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["collective"] for row in rows} == set(MEASURED)
    costs = Costs(network, 2)
    for row in rows:
        predicted = costs.seconds(row["collective"], int(row["payload_bytes"]))
        # The file's numbers are rounded.
        assert predicted / float(row["seconds"]) - 1 == pytest.approx(float(row["error"]), abs=0.02)


def test_the_next_command_reads_it_by_name(profile: Path) -> None:
    runs = f"paths.runs={profile.parent.parent}"
    config = composed([runs, "network=here", "network.rate=100mbit"])
    written = read_profile(profile)
    assert config["network"]["rate"] == "100mbit"
    assert config["network"]["software"] == written["software"]
    assert config["network"]["latency"] == written["latency"]


@pytest.mark.parametrize(
    ("seconds_of", "repeats", "budget", "sizes", "seconds"),
    [
        # 3 repeats of 2,000 bytes take 6 s, but two sizes there must be; of 4,000 they would take 12.
        (lambda size: size * 1e-3, 9, 5.0, [1000, 2000], [1.0, 2.0]),
        # Of a small size it is latency, which says nothing of larger ones.
        (lambda size: 2.0 if size == 1000 else 0.1, 3, 1.0, [1000, 2000, 4000], [2.0, 0.1, 0.1]),
    ],
    ids=["slower and slower", "slow first call"],
)
def test_a_size_that_would_take_too_long_ends_its_collective(
    seconds_of: Callable[[int], float], repeats: int, budget: float, sizes: list[int],
    seconds: list[float],
) -> None:  # fmt: skip
    def timed(collective: str, size: int, repeats: int) -> list[float]:
        return [seconds_of(size)] * repeats

    points = measure([1000, 2000, 4000], repeats, budget, timed)
    assert [(p.collective, p.payload_bytes) for p in points] == [
        (collective, size) for collective in MEASURED for size in sizes
    ]
    assert [p.seconds for p in points] == seconds * len(MEASURED)


def all_take_a_millisecond(function: Any, settings: Any, *_: Any, **__: Any) -> list[Point]:
    """In the place of ranks."""
    return [Point(collective, size, 1e-3) for collective in MEASURED for size in settings["sizes"]]


def test_points_that_tell_no_rate_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dgc_repro.predict.calibrate.on_ranks", all_take_a_millisecond)
    with pytest.raises(UserError, match=r"^sizes: no collective takes longer.*flat.csv"):
        calibrate(["sizes=64,128", f"paths.runs={tmp_path}", "name=flat", "launch.device=cpu"])
    lines = (tmp_path / "networks" / "flat.csv").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "allreduce,64,0.001,"
    assert len(lines) == 1 + 2 * len(MEASURED)


def test_what_a_lab_could_not_do_is_in_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "network.latency: this kernel has no netem, the lab adds none of the 50 us"
    lab = nullcontext(SimpleNamespace(notes=[note]))
    monkeypatch.setattr("dgc_repro.predict.calibrate.Lab", lambda *_, **__: lab)
    monkeypatch.setattr("dgc_repro.predict.calibrate.on_ranks", all_take_a_millisecond)
    given = ["launch=netlab", "network=ethernet_1gbit", "sizes=64,128", "launch.device=cpu"]
    path = calibrate([*given, f"paths.runs={tmp_path}", "name=lab"])
    assert note in str(read_profile(path)["source"])
    assert f"note: {note}" in capsys.readouterr().out


def test_a_bad_fit_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crooked(function: Any, settings: Any, *_: Any, **__: Any) -> list[Point]:
        times = dict(zip(settings["sizes"], (1e-3, 9e-3, 1e-3, 9e-3), strict=True))
        return [Point(c, size, times[size]) for c in MEASURED for size in settings["sizes"]]

    given = [f"paths.runs={tmp_path}", "launch.device=cpu"]
    monkeypatch.setattr("dgc_repro.predict.calibrate.on_ranks", crooked)
    profile = calibrate([*given, "sizes=1kb,2kb,3kb,4kb"])
    assert "the fit is off by" in str(read_profile(profile)["source"])
    assert "WARNING: the fit is off by" in capsys.readouterr().out
