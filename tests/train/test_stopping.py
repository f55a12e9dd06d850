"""A target: what it may be, where a run has reached it, and the end of training there."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from tiny_run import PLAIN, STEPS_PER_EPOCH, TEXT, assert_same_state, built, play, tiny

from dgc_repro.launch.run import run_config
from dgc_repro.names import with_current_names
from dgc_repro.train import checkpoint
from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.stopping import Stopping

NETWORK = ("network=ethernet_1gbit", "train.step_time=modelled", "train.compute_ms=5")
STOPS = ("stopping.target=0.1", "stopping.stop=true", "train.epochs=4")
EASY = (*PLAIN, *STOPS)


def test_an_accuracy_is_reached_from_below_and_a_perplexity_from_above() -> None:
    accuracy, perplexity = Stopping(80.0), Stopping(90.0, "perplexity")
    assert accuracy.is_reached({"test/accuracy_percent": 80.0})
    assert not accuracy.is_reached({"test/accuracy_percent": 79.9})
    assert perplexity.is_reached({"test/perplexity": 90.0})
    assert not perplexity.is_reached({"test/perplexity": 90.1})
    assert not perplexity.is_reached({"test/perplexity": float("nan")})
    cross_entropy = Stopping(0.01, "train_cross_entropy")
    assert cross_entropy.is_reached({"train/cross_entropy": 0.009})
    assert not cross_entropy.is_reached({"train/cross_entropy": 0.011})
    assert not Stopping().is_reached({})


def test_training_ends_at_the_epoch_that_reaches_the_target() -> None:
    run = built(*EASY, *NETWORK)
    story = play(run)
    assert story.finished
    assert len(story.records) == 1
    assert story.checkpoints == [STEPS_PER_EPOCH]
    reached = run.progress.reached
    assert (reached["epoch"], reached["step"]) == (1, STEPS_PER_EPOCH)
    assert reached["seconds"] == story.records[0]["time/train_seconds"]
    assert reached["modelled_seconds"] == story.records[0]["time/modelled_seconds"]


def test_within_an_epoch_the_step_that_reached_it_is_known() -> None:
    run = built(*EASY, *NETWORK, "stopping.every_steps=3")
    story = play(run)
    assert story.finished
    assert run.progress.reached["step"] == run.progress.step == 3
    (record,) = story.records
    assert (record["epoch"], record["step"]) == (1, 3)
    whole = play(built(*EASY, *NETWORK)).records[0]
    # The same bytes a step, hence the same modelled time of one.
    per_step = "time/modelled_communicate_ms"
    assert record[per_step] == pytest.approx(whole[per_step])
    assert story.checkpoints == [3]


def test_another_run_goes_on_where_the_target_has_cut_an_epoch_short(tmp_path: Path) -> None:
    play(built(*EASY, "stopping.every_steps=3"), folder=tmp_path)
    again = built(*PLAIN, "train.epochs=2")
    checkpoint.load(again, tmp_path, None)
    assert (again.progress.epoch, again.progress.step, again.progress.reached) == (0, 3, {})
    story = play(again)
    assert [record["step"] for record in story.records] == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    assert len(story.losses) == 2 * STEPS_PER_EPOCH - 3


def test_looking_for_the_target_within_an_epoch_changes_no_number() -> None:
    for given in (PLAIN, TEXT):
        metric, target = ("perplexity", 1) if given == TEXT else ("accuracy", 100)
        far = (f"stopping.metric={metric}", f"stopping.target={target}")
        plain = play(built(*given, *far))
        looked = play(built(*given, *far, "stopping.every_steps=1"))
        assert looked.losses == plain.losses
        assert looked.records[-1]["test/loss"] == plain.records[-1]["test/loss"]


def test_without_stop_training_goes_on_and_the_first_epoch_that_reached_it_is_kept() -> None:
    run = built(*PLAIN, "stopping.target=0.1", "train.epochs=3")
    story = play(run)
    assert len(story.records) == 3
    assert run.progress.reached["epoch"] == 1
    assert play(built(*PLAIN, "train.epochs=3")).losses == story.losses


@pytest.mark.slow
def test_the_summary_says_whether_the_goal_was_reached(tmp_path: Path) -> None:
    """A run that ended early counts as finished."""
    where = (f"paths.runs={tmp_path}", f"paths.results={tmp_path}")
    far = tiny("stopping.target=100", "stopping.stop=true", "train.epochs=1", *where)
    told = json.loads((run_config(far) / "summary.json").read_text())
    assert told["stopping"] == {"metric": "accuracy", "target": 100, "reached": False}
    assert told["status"] == "finished"
    folder = run_config(tiny(*STOPS, *where))
    told = json.loads((folder / "summary.json").read_text())
    assert (told["status"], told["epochs"]) == ("finished", 1)
    assert told["stopping"]["reached"] is True
    assert told["stopping"]["step"] == STEPS_PER_EPOCH
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1


def test_continued_after_it_was_reached_nothing_is_trained(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the summary."""
    ended, again = built(*EASY), built(*EASY)
    play(ended, folder=tmp_path)
    checkpoint.load(again, tmp_path, "a config")
    story = play(again)
    assert story.finished
    assert story.losses == []
    assert again.progress.reached == ended.progress.reached
    assert_same_state(ended, again)


def test_a_training_cross_entropy_is_that_of_the_whole_split_without_augmentation() -> None:
    metric = ("stopping.metric=train_cross_entropy", "stopping.target=2.2", "stopping.stop=true")
    run = built(*PLAIN, *metric, "train.epochs=9", "stopping.every_steps=1")
    assert play(run).finished
    record = run.progress.last_record
    assert run.progress.reached["step"] == run.progress.step
    assert record["train/cross_entropy"] == evaluate(run, run.splits.train).mean_loss <= 2.2
    assert "train/cross_entropy" not in play(built(*EASY)).records[0]


def test_top5_counts_answers_among_the_five_likeliest() -> None:
    run = built(*PLAIN, "train.epochs=1")
    record = play(run).records[-1]
    run.module.eval()
    hits = total = 0
    for images, labels in run.task.evaluation_batches(run.splits.test, [0, 1], 2):
        with torch.no_grad():
            logits = run.module(images)
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
            hits += sum(value > row[label] for value in row) < 5
            total += 1
    assert total == 53
    assert record["test/top5_percent"] == pytest.approx(100 * hits / total)
    assert record["test/top5_percent"] >= record["test/accuracy_percent"]
    assert 0 <= record["validation/top5_percent"] <= 100


def test_first_names_of_keys_are_read() -> None:
    now = tiny("stopping.target=80", "exchange.overlap=true", "exchange.aggregation=sharded")
    first = deepcopy(now)
    first["goal"] = first.pop("stopping")
    first["exchange"] |= {"junction": "per_bucket", "combine": "scatter"}
    del first["exchange"]["overlap"], first["exchange"]["aggregation"]
    assert with_current_names(first) == now
