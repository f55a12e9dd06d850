"""GraVAC on real links: its bytes are those that interfaces count, and it hears what its steps took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labs import need_a_lab
from test_netlab import RUN
from test_stop_and_continue import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GRAVAC = (
    *(*RUN, "train.epochs=1", "model.width=8", "network.rate=1gbit", "compressor=dgc_sampled"),
    *("wrap=[error_feedback]", "policy=gravac", "policy.window=3", "policy.theta_min=4"),
)


@pytest.mark.parametrize(
    ("workers", "eps", "branches"), [(2, 0.3, {"candidate", "theta_min"}), (4, 0.95, {"dense"})]
)
def test_counters_and_ledger_agree_whatever_branch_is_sent(
    workers: int, eps: float, branches: set[str], tmp_path: Path
) -> None:
    need_a_lab()
    command = Command(tmp_path, *GRAVAC, f"launch.workers={workers}", f"policy.eps={eps}")
    try:
        command.start()
        assert command.end() == (0, [])
        folder = command.run_folder()
    finally:
        command.clean_up()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["net/tx_bytes"] == pytest.approx(summary["net/expected_tx_bytes"], rel=0.02)
    assert summary["comm/total_wire_bytes"] > 2e6  # or overheads would be all there is
    told = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert len(told) == summary["steps"]
    assert {line["decision/branch"] for line in told} == branches
    assert all(line["decision/timed_seconds"] > 0 for line in told[1:])
