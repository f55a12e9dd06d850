"""GraVAC on real links: its bytes are those that interfaces count, and it hears what its steps took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labs import need_a_lab
from test_netlab import RUN
from test_stop_and_continue import Command

pytestmark = pytest.mark.timeout(600)
GRAVAC = (
    *(*RUN, "train.epochs=1", "model.width=8", "network.rate=1gbit", "compressor=dgc_sampled"),
    *("wrap=[error_feedback]", "policy=gravac", "policy.window=3", "policy.eps=0.8"),
)


@pytest.mark.parametrize("workers", [2, 4])
def test_counters_and_ledger_agree_whatever_branch_is_sent(workers: int, tmp_path: Path) -> None:
    need_a_lab()
    command = Command(tmp_path, *GRAVAC, f"launch.workers={workers}")
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
    assert {line["decision/branch"] for line in told} >= {"dense", "theta_min"}
    assert all(line["decision/timed_seconds"] > 0 for line in told[1:])
