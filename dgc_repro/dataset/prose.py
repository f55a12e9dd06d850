"""Embedded prose as a text to learn: plain words, and three parts that share no paragraph.

Words are lower-case without punctuation and numbers are `N`, as in the preprocessed Penn Treebank. Of
every ten paragraphs one is validation and one is test. The label has the first digits of the text's
sha256: what is embedded may change with the version of its package.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod

from dgc_repro.dataset.text import Text, TextSettings, lines_to_words

LEAST_OFTEN = 2  # a word seen once in training is `<unk>`, so that training has some
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|\d[\d.,]*")


class Prose(TextSettings, ABC):
    """An embedded text."""

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
        digest = hashlib.sha256(raw.encode()).hexdigest()[:8]
        return self._words(parts, f"{name} (embedded, sha256 {digest})", LEAST_OFTEN)


def paragraphs(raw: str) -> list[str]:
    """Blocks between empty lines as plain words; markup without a word is left out."""
    blocks = re.split(r"\n\s*\n", raw.lower())
    plain = (
        " ".join("N" if word[0].isdigit() else word for word in WORD.findall(block))
        for block in blocks
    )
    return [block for block in plain if block]
