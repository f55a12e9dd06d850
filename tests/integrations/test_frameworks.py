"""The loops of Lightning, Accelerate and Transformers train as a loop of the user's own does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import frameworks
import pytest
from frameworks import HALF, Task, play
from laws import same
from processes import JobFailed, World

from dgc_repro import Dense, ErrorFeedback, TopK

pytestmark = pytest.mark.slow
LOOPS = ["lightning_callback", "accelerate", "transformers"]
EF_TOPK = ErrorFeedback(TopK(density=0.3))


@pytest.mark.parametrize("loop", LOOPS)
def test_without_compression_a_framework_trains_as_plain_ddp(
    two_workers: World, tmp_path: Path, loop: str
) -> None:
    plain = two_workers(play, "by_hand", Task(None, tmp_path))
    first, second = two_workers(play, loop, Task(Dense(), tmp_path))
    assert same(first, second)
    assert same(first, plain[0])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_framework_accumulates_clips_and_compresses_as_a_loop_by_hand(
    two_workers: World, tmp_path: Path, loop: str, scaled: bool
) -> None:
    task = Task(EF_TOPK, tmp_path, scaled=scaled)
    by_hand = two_workers(play, "by_hand", task)
    first, second = two_workers(play, loop, task)
    assert same(first, second)
    assert same(first, by_hand[0])
    dense = two_workers(play, "by_hand", Task(None, tmp_path, scaled=scaled))
    assert not same(first, dense[0])


@pytest.mark.parametrize("loop", [*LOOPS, "lightning_overlapping"])
def test_a_framework_resumes_the_state_of_every_rank(
    two_workers: World, tmp_path: Path, loop: str
) -> None:
    whole = two_workers(play, "by_hand", Task(EF_TOPK, tmp_path))
    two_workers(play, loop, Task(EF_TOPK, tmp_path, steps=HALF))
    first, second = two_workers(play, loop, Task(EF_TOPK, tmp_path, resumes=True))
    assert same(first, second)
    assert same(first, whole[0])


@pytest.mark.parametrize("loop", LOOPS)
def test_a_framework_resumes_with_another_number_of_ranks_where_it_is_told_how(
    two_workers: World, three_workers: World, tmp_path: Path, loop: str
) -> None:
    two_workers(play, loop, Task(EF_TOPK, tmp_path, steps=HALF))
    with pytest.raises(JobFailed, match=r"reshard"):
        three_workers(play, loop, Task(EF_TOPK, tmp_path, resumes=True))
    first, *others = three_workers(
        play, loop, Task(EF_TOPK, tmp_path, resumes=True, reshard="mean")
    )
    assert all(same(first, other) for other in others)


BYTES, RUNG = ("comm/payload_bytes", "comm/wire_bytes"), "policy/rung"
TIMES = ("time/compress_ms", "time/communicate_ms", "time/decompress_ms")


@pytest.mark.parametrize("loop", ["transformers", "lightning", "accelerate"])
def test_a_framework_logs_bytes_times_and_the_rung_at_its_own_interval(
    two_workers: World, tmp_path: Path, loop: str
) -> None:
    (history, last), (other, others_last) = two_workers(
        getattr(frameworks, f"logged_by_{loop}"), tmp_path
    )
    # Lightning takes a step of two micro-batches, and the others one of each.
    steps = frameworks.STEPS if loop == "lightning" else frameworks.STEPS * frameworks.MICRO_STEPS
    of_training = [row for row in history if "train_loss" not in row]  # Transformers' last log
    rows = [row for row in of_training if BYTES[0] in row]
    counter = {"transformers": "step", "accelerate": "_step", "lightning": "step"}[loop]
    first = 0 if loop == "lightning" else 1  # the number of the first step
    assert [row[counter] - first + 1 for row in rows] == list(range(2, steps + 1, 2))
    for name in BYTES:  # summed since the start, the same number in each step
        assert rows[-1][name] == last[name] > 0
        each = last[name] / steps
        assert [row[name] for row in rows] == [each * n for n in range(2, steps + 1, 2)]
    assert last[BYTES[1]] == others_last[BYTES[1]]
    assert {row[RUNG] for row in rows} == {2}
    assert not set(TIMES) & rows[0].keys()  # the first steps are the warm-up
    assert all(rows[-1][name] > 0 for name in TIMES)
    if loop == "transformers":
        assert [row[BYTES[0]] for row in history if "train_loss" in row] == [last[BYTES[0]]]
        assert any("eval_runtime" in row for row in history)
        assert not any(BYTES[0] in row for row in history if "eval_runtime" in row)
        assert len(other) == len(history)


@pytest.mark.parametrize(
    ("loop", "argument"), [("logged_by_lightning", False), ("logged_by_accelerate", None)]
)
def test_without_a_logger_a_framework_logs_nothing_and_trains(
    two_workers: World, tmp_path: Path, loop: str, argument: object
) -> None:
    for logged, last in two_workers(getattr(frameworks, loop), tmp_path, argument):
        assert logged in ([], [{}])
        assert last[BYTES[0]] > 0
    assert list(tmp_path.iterdir()) == []


def test_lightning_logs_at_its_interval_whatever_the_number_of_optimizers(
    two_workers: World, tmp_path: Path
) -> None:
    steps = frameworks.STEPS * frameworks.MICRO_STEPS
    expected = [[step, step] for step in range(3, steps + 1, 3)]
    logged = two_workers(frameworks.logged_by_lightning_of_two_optimizers, tmp_path)
    assert logged == [expected] * 2


def test_a_module_may_be_fitted_again_without_the_callback(
    two_workers: World, tmp_path: Path
) -> None:
    task = Task(EF_TOPK, tmp_path)
    first, second = two_workers(frameworks.fitted_again_without, task)
    assert same(first, second)
    assert not same(first[0], first[1])


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("lightning_on_one_device", 'strategy: Compress .* use Trainer\\(strategy="ddp"\\)'),
        (
            "transformers_with_reversed_bases",
            r"T: Compressed stands before the Trainer .*; write class T\(Compressed, Trainer\)$",
        ),
        (
            "uneven_lightning",
            r"batches: it differs between ranks: 2 \(rank 0\), 4 \(rank 1\); give all ranks the same numb",
        ),
        ("accelerate_of_one_process", "model: attach takes what accelerator.prepare has wrapped"),
    ],
)
def test_a_loop_that_would_not_compress_is_refused(
    two_workers: World, mistake: str, message: str
) -> None:
    for said in two_workers(getattr(frameworks, mistake)):
        assert re.match(message, said), said


def test_a_trainer_that_is_started_with_python_is_told_of_torchrun(tmp_path: Path) -> None:
    program = """if True:
        from frameworks import Net, batches, named
        from transformers import Trainer, TrainingArguments

        from dgc_repro import Dense
        from dgc_repro.integrations.transformers import Compressed

        class Own(Compressed, Trainer):
            pass

        import torch
        rows = [(torch.ones(6), torch.ones(4))] * 4
        args = TrainingArguments(output_dir="out", use_cpu=True, report_to="none", disable_tqdm=True,
                                 remove_unused_columns=False)
        Own(model=Net(), args=args, train_dataset=rows, data_collator=named, compressor=Dense()).train()
    """
    paths = f"{Path(frameworks.__file__).parent}:{Path(frameworks.__file__).parents[2]}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": paths, "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert re.match(
        r"dgc_repro.errors.UserError: world_size: .*; start it with torchrun --nproc_per_node=2",
        last,
    ), done.stderr


@pytest.mark.parametrize("sized", [True, False])
def test_uneven_batches_of_a_trainer_are_one_line_on_each_rank(tmp_path: Path, sized: bool) -> None:
    world = World(2, seconds=5)  # of its own: a collective that has failed ends a process group
    try:
        told = world(frameworks.uneven_transformers, tmp_path, sized)
    finally:
        world.stop()
    for said in told:
        assert "\n" not in said
        assert "give all ranks the same number of batches, with drop_last=True" in said, told
        if sized:
            assert re.match(
                r"UserError: batches: it differs between ranks: 2 \(rank 0\), 4 \(rank 1\); give",
                said,
            )


PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
SECTIONS = [part.partition("\n") for part in PAGE.read_text("utf-8").split("\n## ")[1:]]
PIECES = {
    title: code
    for title, _, text in SECTIONS
    for code in re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)
}
assert PIECES.keys() == {title for title, _, _ in SECTIONS} - {
    "What is logged",
    "Closures of an optimizer",
}


@pytest.mark.parametrize("code", PIECES.values(), ids=PIECES)
def test_a_snippet_of_the_page_trains_all_ranks_alike(
    two_workers: World, tmp_path: Path, code: str
) -> None:
    first, second = two_workers(frameworks.piece_of_a_page, code, tmp_path)
    assert same(first, second)


def test_a_missing_framework_is_one_line_that_names_the_extra() -> None:
    program = """if True:
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name in ("accelerate", "lightning", "transformers"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        import dgc_repro.integrations.accelerate, dgc_repro.integrations.transformers
        import dgc_repro.integrations.lightning
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert re.search(
        r"Error: lightning is not installed; pip install 'dgc_repro\[lightning\]'$", last
    )
