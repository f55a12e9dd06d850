"""Training on text: the hidden state goes on, resumes, and is each worker's own; perplexity is exact.

The two real processes' part is in test_worlds.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny_run import STEPS_PER_EPOCH, TEXT, UNIFORM4_EF, built, play

from dgc_repro.errors import UserError
from dgc_repro.train import checkpoint
from dgc_repro.train.evaluate import evaluate
from dgc_repro.train.language_task import LanguageTask
from dgc_repro.train.run import Run

NO_DROPOUT = "model.dropout=0"


def carried_by(run: Run, worker: int) -> list[tuple[torch.Tensor, ...]]:
    return run.progress.carried[worker]


def test_each_step_begins_where_the_one_before_has_ended() -> None:
    run = built(*TEXT, NO_DROPOUT, "optimizer.lr=1e-30")  # the weights stay as they are
    play(run, until=3)
    length = 1200 // 20
    for worker in (0, 1):
        rows = [(worker * 10 + column) * length for column in range(10)]
        read = torch.stack([run.splits.train[row : row + 3 * 12] for row in rows])
        with torch.no_grad():
            _, expected = run.module.eval()(read)
        (state,) = carried_by(run, worker)
        for ours, theirs in zip(state, expected, strict=True):
            # 36 words in one call or in three: the same recurrence, sums of 6 products a gate
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
            assert not ours.requires_grad  # cut off from the backward that it has left
            assert ours.dtype == torch.float32


def test_an_epoch_begins_with_nothing() -> None:
    run = built(*TEXT)
    seen: list[bool] = []
    answer = LanguageTask.answer

    class Watched(LanguageTask):
        def answer(self, forward, inputs, carried):  # type: ignore[no-untyped-def]
            if run.module.training:
                seen.append(bool(carried))
            return answer(self, forward, inputs, carried)

    run.task = Watched(run.task.splits, run.settings, seed=0)  # type: ignore[arg-type]
    play(run)
    by_step = [seen[i : i + 2] for i in range(0, len(seen), 2)]
    epoch = [[False, False]] + [[True, True]] * (STEPS_PER_EPOCH - 1)
    assert by_step == epoch + epoch


@pytest.mark.parametrize("workers", [1, 3])
def test_perplexity_is_over_all_words_once_whatever_the_number_of_workers(workers: int) -> None:
    batch = ("train.batch_size=5",)
    run = built(*TEXT, *batch, f"launch.workers={workers}", "dataset.evaluation_columns=1")
    play(run, until=2)
    score = evaluate(run, run.splits.test)
    assert run.module.training

    words = run.splits.test
    run.module.eval()
    with torch.no_grad():
        logits, _ = run.module(words[None, :-1])  # in one go, one column
    losses = F.cross_entropy(logits[0], words[1:], reduction="none").double()
    assert score.count == len(words) - 1 == 100
    # one call of 100 words or nine of 12: each loss is rounded otherwise, sums of 6 and 12 products
    assert score.mean_loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert score.accuracy_percent == pytest.approx(
        100 * (logits[0].argmax(1) == words[1:]).double().mean().item()
    )


def test_a_skipped_step_leaves_the_carried_state_as_it_was() -> None:
    run = built(*TEXT, *UNIFORM4_EF, "train.on_nonfinite=skip")
    play(run, until=2)
    before = carried_by(run, 1)
    weight = run.module.get_parameter("decoder.bias")
    handle = weight.register_hook(lambda gradient: gradient * float("nan"))
    play(run, until=3)
    handle.remove()
    assert run.progress.tally.skipped_steps == 1
    assert carried_by(run, 1) is before


def test_bf16_carries_float32_and_trains_near_fp32() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with pytest.raises(UserError, match=r"^train\.precision: this CPU has no bf16 kernel"):
            built(*TEXT, NO_DROPOUT, "train.precision=bf16")
        pytest.skip("this CPU has no bf16 kernel for an LSTM")
    run = built(*TEXT, NO_DROPOUT, "train.precision=bf16")
    told, fp32 = play(run), play(built(*TEXT, NO_DROPOUT))
    assert told.losses != fp32.losses
    # bf16 keeps 8 bits: 2^-8 a product, a few products deep
    assert told.losses == pytest.approx(fp32.losses, rel=4 * 2**-8)
    assert {t.dtype for state in carried_by(run, 0) for t in state} == {torch.float32}


def test_the_averaged_gradient_is_clipped_before_the_step() -> None:
    steps = {}
    for clip in ("null", "1e-3"):
        run = built(*TEXT, f"optimizer.clip_norm={clip}", "optimizer.weight_decay=0", "wrap=[]")
        before = [p.detach().clone() for p in run.module.parameters()]
        play(run, until=1)
        change = [p.detach() - old for p, old in zip(run.module.parameters(), before, strict=True)]
        norm = torch.linalg.vector_norm(torch.cat([c.flatten() for c in change])).item()
        steps[clip] = norm / run.optimizer.param_groups[0]["lr"]
    assert steps["null"] > 0.1
    # weights of 0.1 hold steps of 1e-6 to 8 ulp; torch divides by the norm + 1e-6
    assert steps["1e-3"] == pytest.approx(1e-3, rel=1e-2)


def test_other_workers_go_on_with_the_mean_residual_and_nothing_carried(tmp_path: Path) -> None:
    first = built(*TEXT, *UNIFORM4_EF)
    play(first, until=2)
    checkpoint.save(first, tmp_path, "a config")
    other = built(*TEXT, *UNIFORM4_EF, "launch.workers=4", "train.batch_size=5",
                  "train.reshard=mean")  # fmt: skip
    checkpoint.load(other, tmp_path, None)
    assert other.progress.carried == [[()]] * 4  # columns of other lengths: nobody's state fits
    assert play(other).finished
