"""Several sinks as one, and the overlays of the group."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest
from made_up_run import run_info
from omegaconf import OmegaConf

from dgc_repro.sink.fan_out import FanOut
from dgc_repro.sink.interface import Sink
from dgc_repro.sink.jsonl import Jsonl


def test_all_sinks_are_told_everything_in_order_and_the_last_is_closed_first(
    tmp_path: Path,
) -> None:
    two = Mock()
    two.b.close.side_effect = OSError("b")
    both: Sink = FanOut([two.a, two.b])
    calls = {"start": run_info(tmp_path), "step": {}, "epoch": {}, "note": "x", "finish": {}}
    for name, argument in calls.items():
        getattr(both, name)(argument)
    assert two.mock_calls == [
        getattr(getattr(call, sink), name)(argument)
        for name, argument in calls.items()
        for sink in "ab"
    ]
    two.reset_mock()
    with pytest.raises(OSError, match="b"):
        both.close()
    assert two.mock_calls == [call.b.close(), call.a.close()]


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
