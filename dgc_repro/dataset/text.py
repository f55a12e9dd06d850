"""Text in memory, and which words a worker sees at which step.

A split is one long row of word numbers, a line after a line, each ended by `<eos>`. For training it
is cut into N b columns of equal length that lie one after another in the text: worker r of N owns
columns r b to r b + b - 1, in every epoch the same ones, and reads them from top to bottom,
`bptt` words a step. Nothing is shuffled: the hidden state at the end of a step is where the next
one begins. The words at the end of the text that fill no column, and those of a column that fill
no step, sit out.

For evaluation the columns are few, fixed in number and of lengths that differ by one at most, so
that every word is asked for exactly once whatever the number of workers.

Legend: n = words of a split, V = vocabulary, N = world size, b = columns of a worker, T = bptt,
C = columns for evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from dgc_repro.checked import Count, checked, one_of, within
from dgc_repro.dataset.batches import uploaded
from dgc_repro.dataset.images import take
from dgc_repro.errors import UserError

Size = Annotated[
    Annotated[int, within(2, name="a whole number of tokens")] | None, "null takes all"
]

READINGS = COLUMNS, WINDOWS = "columns", "windows"
EOS, UNK = "<eos>", "<unk>"
IGNORED = -100
"""A target that is no word: what torch's cross-entropy leaves out by default."""


@dataclass(frozen=True, eq=False)
class Text:
    """What a text data set loads: three disjoint parts as word numbers, and how they are read.

    num_classes: words of the vocabulary. bptt: words a step reads of each column, the length that
    gradients go back through. evaluation_columns: C. label: what a report prints after "data:". windows:
    words that an epoch reads from random places; None: each step reads on where the last one ended.
    """

    train: Tensor  # i64[n]
    validation: Tensor  # i64[n]
    test: Tensor  # i64[n]
    num_classes: int
    bptt: int
    evaluation_columns: int
    label: str
    windows: int | None = None

    def to(self, device: torch.device) -> Text:
        """The same text on a device."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (part.to(device) for part in parts)
        return replace(self, train=train, validation=validation, test=test)


def lines_to_words(lines: Iterable[str]) -> list[str]:
    """The words of all lines that have any, each line ended by `<eos>`."""
    return [word for line in lines if (found := line.split()) for word in (*found, EOS)]


def vocabulary(words: Sequence[str], least_often: int = 1) -> dict[str, int]:
    """Word -> number, most frequent first and alphabetical among equals; `<eos>` and `<unk>` are
    always there. Words seen less than `least_often` times are left out."""
    counts = Counter(words)
    kept = [w for w, count in counts.items() if count >= least_often or w in (EOS, UNK)]
    ordered = sorted({*kept, EOS, UNK}, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ordered)}


def numbered(words: Sequence[str], numbers: dict[str, int]) -> Tensor:
    """i64[n]; a word that has no number is `<unk>`."""
    unknown = numbers[UNK]
    return torch.tensor([numbers.get(word, unknown) for word in words], dtype=torch.int64)


def text_steps_per_epoch(
    n: int, bptt: int, columns: int, world_size: int, windows: int | None = None
) -> int:
    """Full steps each worker makes of n words in `columns` columns of its own; of ``windows`` words from
    random places, where that is not None.

    Raises UserError if there is not one.
    """
    if bptt < n and windows is not None:
        if windows < columns * world_size * bptt:
            raise UserError(
                f"dataset.epoch_size: {world_size} workers x {columns} windows of {bptt} tokens need at "
                f"least {world_size * columns * bptt} for one step, got {windows}; use fewer workers or a "
                "smaller batch"
            )
        return windows // (columns * world_size * bptt)
    steps = (n // (columns * world_size) - 1) // bptt  # the last word of a column is a target only
    if bptt >= n:
        raise UserError(
            f"dataset.bptt: at most {max(1, n - 1)}, the text to train on has {n} tokens, got {bptt}; "
            "35 is the papers'"
        )
    if steps < 1:
        raise UserError(
            f"launch.workers: {world_size} workers x {columns} columns of {bptt} tokens and the next "
            f"one need {world_size * columns * (bptt + 1)} training tokens for one step, there are "
            f"{n}; use fewer workers, a smaller batch or more text (scale=text/quick has sizes for texts)"
        )
    return steps


def own_columns(tokens: Tensor, columns: int, world_size: int, rank: int) -> Tensor:
    """The columns of one worker, i64[b, n // (N b)], a view: a row here is a column of text."""
    length = len(tokens) // (columns * world_size)
    whole = tokens[: length * columns * world_size].view(world_size * columns, length)
    return whole[rank * columns : (rank + 1) * columns]


def text_steps(columns: Tensor, bptt: int, start_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (words, the word after each), i64[b,T] each, of the steps from `start_step` on."""
    steps = (columns.shape[1] - 1) // bptt
    for step in range(start_step, steps):
        here = slice(step * bptt, step * bptt + bptt)
        after = slice(here.start + 1, here.stop + 1)
        yield columns[:, here], columns[:, after]


def text_windows(
    tokens: Tensor, bptt: int, columns: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(words, the word after each), i64[b,T] each, from b = ``columns`` random places."""
    first = torch.randint(len(tokens) - bptt, (columns, 1), generator=generator)
    here = uploaded(first + torch.arange(bptt), tokens.device)
    return tokens[here], tokens[here + 1]


def eval_steps(
    tokens: Tensor, bptt: int, columns: int, ranks: Sequence[int], world_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (words, the word after each), i64[c,T'] each, for the columns of these ranks, top down.

    Each of the n - 1 words that have one before them is a target once, over all ranks. A column
    that is one shorter than the longest ends in `IGNORED`.
    """
    targets = len(tokens) - 1
    shorter, longer = divmod(targets, columns)
    longest = shorter + (longer > 0)
    mine = [column for column in range(columns) if column % world_size in ranks]
    if not mine:
        return
    inputs = tokens.new_zeros(len(mine), longest)
    answers = tokens.new_full((len(mine), longest), IGNORED)
    for row, column in enumerate(mine):
        first = column * shorter + min(column, longer)
        length = shorter + (column < longer)
        inputs[row, :length] = tokens[first : first + length]
        answers[row, :length] = tokens[first + 1 : first + 1 + length]
    for start in range(0, longest, bptt):
        yield inputs[:, start : start + bptt], answers[:, start : start + bptt]


@checked
class TextSettings:
    """Settings of a text; sizes count words.

    validation, train_size, test_size: use the first so many of each part; None uses all. bptt: words
    a step reads of each column. evaluation_columns: columns that a part is evaluated in. reading: `columns`,
    each step reads on where the last one ended, with the hidden state that it left; or `windows`, each step
    reads ``bptt`` words from random places and begins with zeros, as nanoGPT does. epoch_size: words that all
    workers together read from random places in an epoch, since windows have no natural end; None: as many as
    there are to train on.

    Raises ValueError for a value out of range, or an epoch_size that columns would not use.
    """

    validation: Size = None
    train_size: Size = None
    test_size: Size = None
    bptt: Count = 35
    evaluation_columns: Count = 4
    reading: Annotated[str, one_of(READINGS)] = COLUMNS
    epoch_size: Annotated[Count | None, "null reads as many as there are to train on"] = None

    gives: ClassVar[str] = "words"

    def _words(self, parts: Sequence[Sequence[str]], label: str, least_often: int = 1) -> Text:
        """The words of training, validation and test, as numbers of the first one's vocabulary. Raises
        UserError for sizes that they do not have."""
        numbers = vocabulary(parts[0], least_often)
        return self._text([numbered(words, numbers) for words in parts], len(numbers), label)

    def __post_init__(self) -> None:
        if self.epoch_size is not None and self.reading != WINDOWS:
            raise ValueError(
                f"epoch_size: an epoch of dataset.reading={self.reading} reads every column once, got "
                f"{self.epoch_size}; use null"
            )

    def windows(self, n: int) -> int | None:
        """Words that an epoch reads from random places of n words to train on; None: it reads columns."""
        return (self.epoch_size or n) if self.reading == WINDOWS else None

    def _text(self, parts: Sequence[Tensor], num_classes: int, label: str) -> Text:
        """Numbers of training, validation and test, i64[n] each. Raises UserError for sizes that they do not
        have."""
        train, held_out, test = parts
        train = take(train, self.train_size, "train_size", "the part to train on")
        return Text(
            train=train,
            validation=take(held_out, self.validation, "validation", "its part"),
            test=take(test, self.test_size, "test_size", "the test part"),
            num_classes=num_classes,
            bptt=self.bptt,
            evaluation_columns=self.evaluation_columns,
            label=label,
            windows=self.windows(len(train)),
        )
