"""The same runs in two real processes and in one simulated world.

One world of processes is started for the file; it plays all jobs one after another. With two
workers a sum is the same whoever adds, so that even dense is equal bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_run import PLAIN, SETTINGS, TEXT, UNIFORM4_EF, built, tiny
from world import told_by

HERE = Path(__file__).resolve().parent
PER_BUCKET = "exchange.junction=per_bucket"
STOCHASTIC = ("compressor=uniform", "compressor.rounding=stochastic", "wrap=[error_feedback]")
POISONED = ("~model", "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}")
HALVES = (*PLAIN, "train.batch_size=8", "train.accumulate=2")
COMPARED = {
    "dense": SETTINGS["dense"],
    "uniform and error feedback": UNIFORM4_EF,
    "uniform stochastic": STOCHASTIC,
    "stepwise": SETTINGS["stepwise over a ladder of residuals"],
    "one vector": SETTINGS["one vector"],
    "powersgd": SETTINGS["powersgd"],  # its kernels add in one order, wherever a tensor lies
    "randomk": SETTINGS["randomk apart"],
    "dgc": SETTINGS["dgc"],
    "dgc clipped": SETTINGS["dgc clipped"],
    "block momentum": SETTINGS["block momentum"],
    "accumulated": (*HALVES, *UNIFORM4_EF),
    "skip": (*POISONED, *UNIFORM4_EF, "train.on_nonfinite=skip"),
    "text": (*TEXT, *UNIFORM4_EF),
    "gravac": SETTINGS["gravac"],
    "gravac a step later": SETTINGS["gravac a step later"],
    "probed": SETTINGS["probed"],
}
JOBS = {
    **COMPARED,
    "dense, per bucket": (*SETTINGS["dense"], PER_BUCKET),
    "uniform and error feedback, per bucket": (*UNIFORM4_EF, PER_BUCKET),
    "uniform stochastic, per bucket": (*STOCHASTIC, PER_BUCKET),
    "dgc, per bucket": (*SETTINGS["dgc"], PER_BUCKET),
    "block momentum, per bucket": (*SETTINGS["block momentum"], PER_BUCKET),
    "accumulated, per bucket": (*HALVES, *UNIFORM4_EF, PER_BUCKET),
    "text, per bucket": (*TEXT, *UNIFORM4_EF, PER_BUCKET),
    "gravac a step later, per bucket": (*SETTINGS["gravac a step later"], PER_BUCKET),
    "skip, per bucket": (*POISONED, *UNIFORM4_EF, "train.on_nonfinite=skip", PER_BUCKET),
    "checked": (*UNIFORM4_EF, "exchange.check=true"),
    "raise": (*POISONED, *UNIFORM4_EF),
    "raise, per bucket": (*POISONED, *UNIFORM4_EF, PER_BUCKET),
}
RAGGED = ("dgc", "dgc clipped", "dgc, per bucket")
"""Each worker sends another number of entries, and counts its own floats."""
PATIENCE_SECONDS = 300
"""Seconds for 29 runs that take 29 on an idle machine."""
LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")


pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_SECONDS + 20)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks told, by job."""
    folder = tmp_path_factory.mktemp("world")
    jobs = folder / "jobs.json"
    jobs.write_text(json.dumps({name: tiny(*LOCAL, *job) for name, job in JOBS.items()}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(HERE / "world.py"), str(jobs), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def shared_part(told: dict[str, Any], name: str, rank: int) -> dict[str, Any]:
    """What every rank must tell alike, and every world. Evaluation batches are cut otherwise where
    workers are simulated; comparing replicas once an epoch needs replicas; buffers that one process
    holds need no broadcast."""
    evaluated = [
        f"{part}/{name}" for part in ("validation", "test") for name in ("loss", "perplexity")
    ]
    other = (*evaluated, "comm/check_bytes", "comm/total_wire_bytes")
    own = ("comm/buffer_bytes", *(("comm/floats",) if name in RAGGED and rank else ()))
    records = [
        {key: v for key, v in record.items() if key not in (*other, *own)}
        for record in told["records"]
    ]
    return {"losses": told["losses"], "parameters": told["parameters"], "records": records}


@pytest.mark.parametrize("name", COMPARED)
def test_real_processes_do_what_the_simulated_world_does_bit_for_bit(
    name: str, processes: list[dict[str, Any]]
) -> None:
    for rank in (0, 1):
        simulated = told_by(built(*JOBS[name]), rank)
        real = processes[rank][name]
        assert shared_part(real, name, rank) == shared_part(simulated, name, rank)
        assert real["state"] == simulated["state"]
        if rank == 0:  # rank 0's are the ones that count
            assert real["buffers"] == simulated["buffers"]
        for one, two in zip(real["records"], simulated["records"], strict=True):
            for key in ("validation/loss", "test/loss"):
                # Batches of other sizes: up to 288 products summed in another order, 18 layers.
                assert one[key] == pytest.approx(two[key], rel=18 * 288 * 2.0**-24)


@pytest.mark.parametrize("name", [name for name in JOBS if not name.startswith("raise")])
def test_both_ranks_tell_the_same(name: str, processes: list[dict[str, Any]]) -> None:
    first, second = (rank[name] for rank in processes)
    for one, two in zip(first["records"], second["records"], strict=True):
        assert {key for key in one if one[key] != two[key]} <= (
            {"comm/floats"} if name in RAGGED else set()
        )
    assert (first["losses"], first["parameters"]) == (second["losses"], second["parameters"])


@pytest.mark.parametrize(
    "name",
    [
        *("dense", "uniform and error feedback", "uniform stochastic", "dgc", "block momentum"),
        *("accumulated", "skip", "text", "gravac a step later"),
    ],
)
def test_per_bucket_gives_the_bits_of_after_backward(
    name: str, processes: list[dict[str, Any]]
) -> None:
    """Gathered payloads in any world; dense because two numbers have one sum."""
    for rank in processes:
        bucket, after = rank[f"{name}, per bucket"], rank[name]
        assert bucket["losses"] == after["losses"]
        assert bucket["parameters"] == after["parameters"]
        assert bucket["state"] == after["state"]


def test_the_check_changes_no_number_and_is_counted_apart(
    processes: list[dict[str, Any]],
) -> None:
    checked = processes[0]["checked"]
    plain = processes[0]["uniform and error feedback"]
    assert checked["parameters"] == plain["parameters"]
    for one, two in zip(plain["records"], checked["records"], strict=True):
        more = two["comm/check_bytes"] - one["comm/check_bytes"]
        assert more > 0
        assert two["comm/total_wire_bytes"] - one["comm/total_wire_bytes"] == more
        for key in ("payload", "wire", "signal", "buffer", "evaluation"):
            assert two[f"comm/{key}_bytes"] == one[f"comm/{key}_bytes"]


@pytest.mark.parametrize("name", ["raise", "raise, per bucket"])
def test_a_gradient_that_is_not_finite_is_named_on_both_ranks(
    name: str, processes: list[dict[str, Any]]
) -> None:
    texts = {rank[name]["error"] for rank in processes}
    (text,) = texts
    assert text.startswith("train.on_nonfinite: the gradient is not finite at step 3 (")
    assert "rank 1: head.weight" in text
    assert "\n" not in text


def test_both_ranks_skip_the_same_step(processes: list[dict[str, Any]]) -> None:
    for rank in processes:
        for name in ("skip", "skip, per bucket"):
            skipped = [record["train/skipped_steps"] for record in rank[name]["records"]]
            assert skipped == [1, 0]
