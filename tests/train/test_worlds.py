"""The same runs in real processes and in one simulated world, of one level and of two.

With two workers a sum is the same whoever adds, so that even dense is equal bit for bit. Two-level
worlds: dense inside a node, compressed between nodes; four workers, two nodes of two.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import World
from tiny_run import PLAIN, RECIPE, SETTINGS, TEXT, UNIFORM4_EF, built, tiny
from told import EVALUATED, shared_part, told_by, told_here

pytestmark = pytest.mark.slow

PER_BUCKET = "exchange.overlap=true"
SKIP = "train.on_nonfinite=skip"
POISON = "+model={{_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:{}}}"
HALVES = ("train.batch_size=8", "train.accumulate=2")
LOCAL = ("launch=local", "launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=60")
FACTORIZED = (
    *("model=cnn", "model.hidden=32", "model.dropout=0.3", "model.low_rank.from_epoch=1"),
    "train.epochs=3",
)
LADDER = "stepwise over a ladder of residuals"
# PowerSGD's kernels add in one order, wherever a tensor lies.
NAMED = ("dense", LADDER, "powersgd", "randomk apart", "dgc", "block momentum", "gravac",
         "gravac a step later", "dion")  # fmt: skip
TWO: dict[str, tuple[str, ...]] = {
    **{name: SETTINGS[name] for name in NAMED},
    "uniform and error feedback": UNIFORM4_EF,
    "accumulated": (*PLAIN, *HALVES, *UNIFORM4_EF),
    "skip": ("~model", POISON.format(1), *UNIFORM4_EF, SKIP),
    "fp16": (*PLAIN, *UNIFORM4_EF, "train.precision=fp16"),
    "fp16 that overflows": (
        *("~model", POISON.format(1), *UNIFORM4_EF, "train.precision=fp16", *HALVES),
    ),
    "text": (*TEXT, *UNIFORM4_EF),
    **{f"{n}, factorized": (*FACTORIZED, *SETTINGS[n]) for n in ("dense", "powersgd", "accordion")},
    "sam, factorized": (*FACTORIZED, *UNIFORM4_EF, "optimizer=sam", "optimizer.compressed=first"),
    "recipe": (*RECIPE, "train.precision=fp32"),  # each rank fits the whitening
    "muon": ("optimizer=muon", "compressor=topk"),
    "local steps": ("train.local_steps=3", *UNIFORM4_EF),
    "fragments": (
        *(*UNIFORM4_EF, "optimizer=muon", "train.batch_size=8", "train.local_steps=4"),
        *("train.fragments=2", "train.delay_steps=1", "train.mixing=0.5"),
    ),
    "local steps of adam, skipping": (
        *("train.local_steps=3", "optimizer=adam", "compressor=topk"),
        *("~model", POISON.format(0), SKIP),
    ),
}
NOT_OVERLAPPED = (
    *(f"{name}, factorized" for name in ("powersgd", "accordion", "sam")),
    *(LADDER, "powersgd", "randomk apart", "gravac"),
    *("local steps", "fragments", "local steps of adam, skipping"),
)


@pytest.mark.parametrize("name", TWO)
def test_real_processes_equal_simulated_ones(name: str, two_workers: World, tmp_path: Path) -> None:
    # With checkpoints, as a real run has them: their broadcasts of buffers are in the ledger.
    real = two_workers(told_here, tiny(*TWO[name], *LOCAL), tmp_path)
    for rank, told in enumerate(real):
        simulated = told_by(built(*TWO[name]), rank)
        floats = rank == 0 or not name.startswith("dgc")
        assert shared_part(told, floats=floats) == shared_part(simulated, floats=floats)
        assert told["state"] == simulated["state"]
        if rank == 0:  # rank 0's are the ones that count
            assert told["buffers"] == simulated["buffers"]
        for one, two in zip(told["records"], simulated["records"], strict=True):
            differ = {key for key in one if one[key] != real[0]["records"][one["epoch"] - 1][key]}
            assert differ <= (set() if floats else {"comm/floats"})
            for key in {
                f"{part}/loss" for part in EVALUATED
            } & one.keys():  # fit/ in the last record
                # Batches of other sizes: up to 288 products summed in another order, 18 layers.
                assert one[key] == pytest.approx(two[key], rel=18 * 288 * 2.0**-24)
        if SKIP in TWO[name]:
            skipped = 1 / 2 if name.startswith("local steps") else 1  # on one of two workers
            assert [record["train/skipped_steps"] for record in told["records"]] == [skipped, 0]
    if name not in NOT_OVERLAPPED:  # dense too, because two numbers have one sum
        overlapped = two_workers(told_here, tiny(*TWO[name], *LOCAL, PER_BUCKET))
        for bucket, after in zip(overlapped, real, strict=True):
            for part in ("losses", "parameters", "state"):
                assert bucket[part] == after[part], part


@pytest.mark.parametrize("more", [(), (PER_BUCKET,)])
def test_a_nan_gradient_is_named_on_all_ranks(more: tuple[str, ...], two_workers: World) -> None:
    given = ("~model", POISON.format(1), *UNIFORM4_EF, *more)
    (text,) = {told["error"] for told in two_workers(told_here, tiny(*given, *LOCAL))}
    assert text.startswith("train.on_nonfinite: the gradient is not finite at step 3 (")
    assert "rank 1: head.weight" in text
    assert "\n" not in text
