"""Several sinks as one, and the overlays of the group."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from made_up_run import play, run_info
from omegaconf import OmegaConf

from dgc_repro.sink.console import Console
from dgc_repro.sink.fan_out import FanOut
from dgc_repro.sink.interface import Sink
from dgc_repro.sink.jsonl import Jsonl


class Diary:
    """Notes what it is told into a list that it may share."""

    def __init__(self, name: str, told: list[str], fails_to_close: bool = False) -> None:
        self.name, self.told, self.fails = name, told, fails_to_close

    def start(self, run: object) -> None:
        self.told.append(f"{self.name} start")

    def step(self, metrics: object) -> None:
        self.told.append(f"{self.name} step")

    def epoch(self, record: object) -> None:
        self.told.append(f"{self.name} epoch")

    def note(self, text: str) -> None:
        self.told.append(f"{self.name} note {text}")

    def finish(self, summary: object) -> None:
        self.told.append(f"{self.name} finish")

    def close(self) -> None:
        self.told.append(f"{self.name} close")
        if self.fails:
            raise OSError(self.name)


def test_all_sinks_are_told_everything_in_order(tmp_path: Path) -> None:
    told: list[str] = []
    both: Sink = FanOut([Diary("a", told), Diary("b", told)])
    both.start(run_info(tmp_path))
    both.step({})
    both.epoch({})
    both.note("x")
    both.finish({})
    assert told == [
        f"{n} {w}" for w in ("start", "step", "epoch", "note x", "finish") for n in "ab"
    ]


def test_all_are_closed_even_where_one_fails() -> None:
    told: list[str] = []
    with pytest.raises(OSError, match="b"):
        FanOut([Diary("a", told), Diary("b", told, fails_to_close=True)]).close()
    assert told == ["b close", "a close"]


def test_the_record_and_the_console_together_are_a_sink(tmp_path: Path) -> None:
    screen = io.StringIO()
    both: Sink = FanOut([Jsonl(), Console(screen)])
    both.start(run_info(tmp_path))
    play(both)
    both.finish({"status": "finished"})
    both.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert screen.getvalue().count("epoch") == 3


@pytest.mark.parametrize(
    ("name", "console", "mirrored"),
    [("console", True, False), ("none", False, False), ("wandb", True, True)],
)
def test_each_overlay_says_what_runs_beside_the_record(
    repository: Path, name: str, console: bool, mirrored: bool
) -> None:
    path = repository / "conf" / "sink" / f"{name}.yaml"
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert path.read_text().startswith("# ")
    assert (plain["console"], plain["mirror"] is not None) == (console, mirrored)
    assert Jsonl(every_steps=plain["every_steps"]) == Jsonl()
