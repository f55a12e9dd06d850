"""How many ranks a row has on a machine with so many GPUs, and what their environment is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dgc_repro.selfcheck import command, process, rows
from dgc_repro.selfcheck.process import Result
from dgc_repro.selfcheck.rows import Row

VARIABLES = ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_MAX_CTAS", "NCCL_PROTO")
Environment = dict[str, str | None]


def on_one_gpu(rank: int) -> Environment:
    return dict(zip(VARIABLES, (f"selfcheck{rank}", "1", "4", "Simple"), strict=True))


PLAIN: Environment = dict.fromkeys(VARIABLES)


@pytest.mark.parametrize(
    ("name", "gpus", "environments"),
    [
        ("ranks-cuda", 1, [on_one_gpu(0), on_one_gpu(1)]),
        ("ranks-cuda", 2, [PLAIN, PLAIN]),
        ("exchange-cuda", 1, [PLAIN]),
        ("exchange-cuda", 4, [PLAIN]),
        ("time-cuda", 1, [PLAIN]),
        ("time-cuda", 2, [PLAIN, PLAIN]),
        ("exchange-cpu", 0, [PLAIN, PLAIN]),
    ],
)
def test_ranks_share_a_gpu_only_where_there_are_too_few(
    name: str, gpus: int, environments: list[Environment], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(command.torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(command.torch.cuda, "device_count", lambda: gpus)
    ran: list[Row] = []

    def run_row(row: Row, *_: object) -> Result:
        ran.append(row)
        return Result(row.name, process.PASS, "")

    monkeypatch.setattr(command, "run_row", run_row)
    command.selfcheck([f"rows={name}", f"report={tmp_path / 'selfcheck.json'}"])
    (row,) = ran
    made = [process._environment(row, rank, tmp_path / "meet") for rank in range(row.ranks)]
    assert [{v: one.get(v) for v in VARIABLES} for one in made] == environments
    assert [one["SELFCHECK_RANKS"] for one in made] == [str(len(environments))] * row.ranks


def test_a_row_for_gpus_is_skipped_only_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(command, "run_row", lambda row, *_: Result(row.name, process.PASS, ""))
    command.selfcheck([f"report={tmp_path / 'selfcheck.json'}"])
    printed = capsys.readouterr().out
    for row in rows.ROWS:
        status = "SKIP" if row.device == rows.CUDA else "PASS"
        assert f"{status}  {row.name} " in printed
