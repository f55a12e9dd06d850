"""The best static rung in hindsight, from finished runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dgc_repro.policy.oracle import Oracle, finished


def made(folder: Path, losses: list[float | None], status: str = "finished") -> str:
    """A run of these validation losses; an epoch is 10 steps, its accuracy 100 - 10 loss."""
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"status": status}))
    lines: list[dict[str, Any]] = [{"kind": "note", "text": "a note"}]
    for number, loss in enumerate(losses, 1):
        accuracy = 0.0 if loss is None else 100 - 10 * loss
        values = {"validation/loss": loss, "test/accuracy_percent": accuracy, "step": 10 * number}
        lines.append({"kind": "epoch", "epoch": number, **values})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(folder)


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """Weak compression ends best, the middle one is fastest to 1.5, the strongest fails."""
    losses = {"weak": [3.0, 2.0, 1.0], "middle": [2.0, 1.4, 1.2], "strong": [3.0, 2.9, None]}
    return [made(tmp_path / name, values) for name, values in losses.items()]


def oracle(runs: Any, **settings: Any) -> Oracle:
    return Oracle(**{"field": "factor", "values": (10, 100, 1000), "runs": runs} | settings)


def test_it_plans_the_rung_that_ended_best(three: list[str]) -> None:
    policy = oracle(three)
    assert policy.rung == 1
    state = policy.init()
    assert [policy.plan(state, step).rung for step in (0, 1, 99)] == [1, 1, 1]
    highest = oracle(three, criterion="test/accuracy_percent", best="highest")
    assert highest.rung == 1


def test_with_a_target_it_plans_the_rung_that_reaches_it_at_the_least_cost(
    three: list[str],
) -> None:
    assert oracle(three, target=1.5).rung == 2
    assert oracle(three, target=1.1).rung == 1
    accuracy = {"criterion": "test/accuracy_percent", "best": "highest"}
    assert oracle(three, target=85, **accuracy).rung == 2


def test_runs_that_are_not_finished_do_not_count(tmp_path: Path, three: list[str]) -> None:
    stopped = made(tmp_path / "stopped", [0.1], status="stopped")
    assert oracle([stopped, three[1], three[2]]).rung == 2
    assert oracle([None, three[1], str(tmp_path / "missing")]).rung == 2
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "metrics.jsonl").write_text("3\n")
    for text in ("{", "[]", "3", '{"status": "finished"}'):
        (torn / "summary.json").write_text(text)
        assert finished(torn) == []


def test_seeds_of_a_value_are_averaged(tmp_path: Path, three: list[str]) -> None:
    lucky, unlucky = made(tmp_path / "s0", [0.5]), made(tmp_path / "s1", [3.0])
    assert oracle([three[0], [lucky, unlucky], None]).rung == 1
    assert oracle([three[0], [lucky], None]).rung == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"runs": [None, "nowhere", None]},
            "runs: a finished run of at least one value, got none in [None, 'nowhere', None]; make",
        ),
        ({"runs": ["nowhere"]}, "runs: a run's folder for each of the 3 values [10, 100, 1000]"),
        ({"runs": "nowhere"}, "runs: a list, a run's folder for each value, got 'nowhere'"),
        ({"best": "largest"}, "best: one of lowest, highest, got 'largest'"),
        ({"target": "low"}, "target: a number, or null, got 'low'"),
        ({"target": 0.5}, "target: none of the runs reaches 0.5 of validation/loss"),
        ({"criterion": "test/los"}, "criterion: a column of the runs' epochs (epoch, step, test/"),
        ({"target": 2, "cost": "time"}, "cost: a column of the runs' epochs (epoch, step, test/"),
        ({"values": ()}, "values: a list of one or more settings"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str, three: list[str]) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        oracle(**{"runs": three} | settings)
