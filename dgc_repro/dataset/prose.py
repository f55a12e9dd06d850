"""Embedded prose as a text to learn: plain words, and three parts that share no paragraph.

Words are lower-case without punctuation and numbers are `N`, as in the preprocessed Penn Treebank. Of
every ten paragraphs one is validation and one is test. The label has the first digits of the text's
sha256: what is embedded may change with the version of its package.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from typing import ClassVar

from dgc_repro.checked import Count, checked
from dgc_repro.dataset.text import Size, Text, lines_to_words, numbered, take_words, vocabulary

LEAST_OFTEN = 2  # a word seen once in training is `<unk>`, so that training has some
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d[\d.,]*")


@checked
class Prose(ABC):
    """Settings of an embedded text; sizes count words.

    validation, train_size, test_size: use the first so many of each part; None uses all. bptt: words
    a step reads of each column. evaluation_columns: columns that a part is evaluated in.

    Raises ValueError for a value out of range.
    """

    validation: Size = None
    train_size: Size = None
    test_size: Size = None
    bptt: Count = 35
    evaluation_columns: Count = 4

    gives: ClassVar[str] = "words"

    @abstractmethod
    def source(self) -> tuple[str, str]:
        """The text, with one kind of line ends, and what reports call it."""

    def load(self) -> Text:
        """Read the text and split it into the three parts. Raises UserError for sizes that it does not
        have."""
        raw, name = self.source()
        found = paragraphs(raw)
        parts = [
            lines_to_words(p for i, p in enumerate(found) if i % 10 in chosen)
            for chosen in (range(8), (8,), (9,))
        ]
        numbers = vocabulary(parts[0], LEAST_OFTEN)
        train, held_out, test = (numbered(words, numbers) for words in parts)
        digest = hashlib.sha256(raw.encode()).hexdigest()[:8]
        return Text(
            train=take_words(train, self.train_size, "train_size", "the part to train on"),
            validation=take_words(held_out, self.validation, "validation", "its part"),
            test=take_words(test, self.test_size, "test_size", "the test part"),
            num_classes=len(numbers),
            bptt=self.bptt,
            evaluation_columns=self.evaluation_columns,
            label=f"{name} (embedded, sha256 {digest})",
        )


def paragraphs(raw: str) -> list[str]:
    """Blocks between empty lines as plain words; markup without a word is left out."""
    blocks = re.split(r"\n\s*\n", raw.lower())
    plain = (" ".join(_plain(word) for word in WORD.findall(block)) for block in blocks)
    return [block for block in plain if block]


def _plain(word: str) -> str:
    return "N" if word[0].isdigit() else word
