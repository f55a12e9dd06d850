"""bench/validate_network.py: what it predicts from, and how it judges. (The lab has tests of its own.)"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from dgc_repro.bench import validate_network as script
from dgc_repro.bench.replay import SPANS
from dgc_repro.bench.tables import Machine, Row
from dgc_repro.errors import UserError
from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Fit
from dgc_repro.network.iteration import Part, Step
from dgc_repro.network.profile import Network

pytestmark = pytest.mark.slow

NETWORK = Network("8mbit", efficiency=1.0)
STEP = Step(0.05, [Part(0.05, 0.01, 0.02, {"allgather": (1, 10**5)}, {})], {})


def row(measured_seconds: float) -> Row:
    found = pd.DataFrame({"seconds": [measured_seconds, 2 * measured_seconds, measured_seconds]})
    others = dict.fromkeys([*(f"{span}_ms" for span in SPANS), "payload_bytes"], 1.0)
    found = found.assign(**others)
    point = {"workers": 2, "rate": "8mbit", "method": "top-k 1 %"}
    return script.compared(point, STEP, Costs(NETWORK, 2), found)


def test_a_point_is_the_models_sum_against_the_median_step() -> None:
    found = row(0.2)
    assert found["predicted_ms"] == pytest.approx(50 + 10 + 100 + 20)
    assert found["measured_ms"] == pytest.approx(200)
    assert found["error"] == pytest.approx(-0.1)


def test_the_verdict_is_the_targets_and_says_when_points_are_few(tmp_path: Path) -> None:
    machine = Machine("a CPU", 2, "2.0", "today", 0.0)
    fits = {2: Fit(NETWORK, [], [0.0])}
    for count, word in ((24, ": met)"), (8, ": met, of too few points)")):
        script.write(tmp_path, [row(0.18)] * count, fits, machine, "steps")
        assert f"{count} points: median error 0.0 %" in (tmp_path / "validation.md").read_text()
        assert word in (tmp_path / "validation.md").read_text()
    script.write(tmp_path, [row(0.36)] * 24, fits, machine, "steps")
    assert "median error 50.0 % (at most 10 %: missed)" in (tmp_path / "validation.md").read_text()
    assert (tmp_path / "validation.png").stat().st_size > 1000


def test_by_default_there_are_24_points() -> None:
    options = script.parsed([])
    assert len(options.workers) * len(options.rates) * len(options.methods) == 24


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--methods", "torch-fp16"], "--methods: no 'torch-fp16'"),
        (["--rates", "1mbit"], "--rates: "),
        (["--compute", "x"], "--compute: "),
        (["--repeats", "0"], "--repeats: a whole number from 1, got '0'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], line: str) -> None:
    with pytest.raises(UserError) as error:
        script.parsed(arguments)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_bad_input_ends_the_script_with_one_line_and_code_2(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repository / "scripts" / "validate_network.py"), "--workers", "1"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("validate-network: --workers: a whole number from 2 to ")
    assert done.stderr.count("\n") == 1
