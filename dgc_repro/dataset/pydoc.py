"""The English of Python's own documentation topics, which its interpreter carries for `help()`.

About 68,000 words of technical prose (`pydoc_data.topics` of Python 3.11), ten times the other embedded text:
for quick runs and for tests of language models where no network is at hand; no paper's claim is judged on
it. What becomes of it: dataset/prose.py. The text differs between versions of Python, which the label says.

Source: the Python documentation, PSF-2.0, the Python Software Foundation.
"""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from typing import ClassVar

from dgc_repro.dataset.prose import text_of
from dgc_repro.dataset.text import Text, check_text_fields
from dgc_repro.errors import UserError


@dataclass(frozen=True)
class Pydoc:
    """Settings of the embedded text; sizes count words.

    validation, train_size, test_size: use the first so many of each part; None uses all. bptt: words
    a step reads of each column. evaluation_columns: columns that a part is evaluated in.

    Raises ValueError for a value out of range.
    """

    validation: int | None = None
    train_size: int | None = None
    test_size: int | None = None
    bptt: int = 35
    evaluation_columns: int = 4

    gives: ClassVar[str] = "words"

    def __post_init__(self) -> None:
        check_text_fields(
            [("bptt", self.bptt), ("evaluation_columns", self.evaluation_columns)],
            [(f, getattr(self, f)) for f in ("validation", "train_size", "test_size")],
        )

    def load(self) -> Text:
        """Read and split the text. Raises UserError for sizes that it does not have."""
        version = ".".join(platform.python_version_tuple()[:2])
        return text_of(
            _all_topics(),
            f"topics of Python {version}'s documentation",
            self.validation,
            self.train_size,
            self.test_size,
            self.bptt,
            self.evaluation_columns,
        )


def _all_topics() -> str:
    """The topics in the order of their names, with one kind of line ends."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "dataset: this Python comes without pydoc_data.topics (some distributions leave it out); "
            "use dataset=descriptions"
        ) from error
    return "\n\n".join("\n".join(topics[name].splitlines()) for name in sorted(topics))
