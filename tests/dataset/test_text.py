"""Columns of text: contiguous, in order, a worker's own; evaluation asks for every word once."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.dataset.batches import window_generator
from dgc_repro.dataset.text import (
    IGNORED,
    eval_steps,
    own_columns,
    text_steps,
    text_steps_per_epoch,
    text_windows,
)
from dgc_repro.errors import UserError


@pytest.mark.parametrize(("world", "columns"), [(1, 1), (1, 3), (2, 2), (3, 2)])
def test_a_worker_reads_its_own_stretches_of_the_text_in_order(world: int, columns: int) -> None:
    text, bptt = torch.arange(100), 4
    length = 100 // (world * columns)
    steps = text_steps_per_epoch(len(text), bptt, columns, world)
    read = []
    for rank in range(world):
        own = own_columns(text, columns, world, rank)
        batches = list(text_steps(own, bptt))
        assert len(batches) == steps
        for column in range(columns):
            words = torch.cat([words[column] for words, _ in batches])
            targets = torch.cat([targets[column] for _, targets in batches])
            first = (rank * columns + column) * length
            # contiguous from step to step: what a carried hidden state takes for granted
            assert words.tolist() == list(range(first, first + steps * bptt))
            assert torch.equal(targets, words + 1)
            assert targets[-1] < first + length  # never a word of the next column
            read += words.tolist()
    assert len(set(read)) == len(read), "no word belongs to two workers"


@pytest.mark.parametrize(
    ("world", "columns", "bptt"), [(1, 1, 1), (1, 150, 7), (2, 10, 1000), (3, 4, 7), (3, 150, 1)]
)
def test_evaluation_asks_for_every_word_but_the_first_once(
    world: int, columns: int, bptt: int
) -> None:
    text = torch.arange(101)
    asked: list[int] = []
    for rank in range(world):
        for words, targets in eval_steps(text, bptt, columns, [rank], world):
            assert words.shape == targets.shape
            assert words.shape[1] <= bptt
            real = targets != IGNORED
            assert torch.equal(words[real] + 1, targets[real])
            asked += targets[real].tolist()
    assert sorted(asked) == list(range(1, 101))


def test_too_little_text_for_one_step_is_said_with_the_number_needed() -> None:
    assert text_steps_per_epoch(2 * 4 * 36, 35, 4, 2) == 1
    with pytest.raises(UserError, match=r"^launch\.workers: 2 workers x 4 columns .* 288 .* 287;"):
        text_steps_per_epoch(2 * 4 * 36 - 1, 35, 4, 2)
    with pytest.raises(
        UserError, match=r"^dataset\.bptt: at most 29, the text .* 30 tokens, got 30"
    ):
        text_steps_per_epoch(30, 30, 1, 1)
    assert text_steps_per_epoch(30, 29, 1, 1) == 1


def windows_of(step: int, n: int) -> torch.Tensor:
    words, targets = text_windows(torch.arange(n), 8, 3, window_generator(0, 0, 0, step))
    assert words.shape == targets.shape == (3, 8)
    assert torch.equal(targets, words + 1)  # the text counts up
    assert torch.equal(words, words[:, :1] + torch.arange(8))
    return words


def test_windows_begin_everywhere_and_the_last_word_is_a_target() -> None:
    # of 8 words and the next one: in 12 words they begin at 0 to 3
    firsts = [windows_of(step, 12)[:, 0] for step in range(50)]
    assert set(torch.cat(firsts).tolist()) == {0, 1, 2, 3}
    assert torch.equal(windows_of(0, 9), torch.arange(8).expand(3, 8))


def test_an_epoch_of_windows_reads_as_many_tokens_as_it_is_given() -> None:
    assert text_steps_per_epoch(1000, 8, 3, 2, windows=480) == 10
    assert text_steps_per_epoch(1000, 8, 3, 2, windows=479) == 9
    assert text_steps_per_epoch(9, 8, 3, 2, windows=48) == 1
    says = r"^dataset\.epoch_size: 2 workers x 3 windows of 8 tokens need at least 48 .* got 47;"
    with pytest.raises(UserError, match=says):
        text_steps_per_epoch(1000, 8, 3, 2, windows=47)
    with pytest.raises(UserError, match=r"^dataset\.bptt: at most 7, .* 8 tokens, got 8"):
        text_steps_per_epoch(8, 8, 1, 1, windows=1000)
