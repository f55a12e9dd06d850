"""The descriptions of data sets that scikit-learn carries in its wheel: a text that is always there.

About 5,000 words of English prose in 14 files. For quick runs and for tests of language models; no
paper's claim is judged on it. What becomes of it: dataset/prose.py.

The text may change with scikit-learn's version (constraints.txt pins it), so the label, and with it
every record, has the first digits of its sha256.

Source: `sklearn/datasets/descr/*.rst`, BSD-3-Clause, the scikit-learn developers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

from dgc_repro.dataset.prose import text_of
from dgc_repro.dataset.text import Text, check_text_fields
from dgc_repro.errors import UserError


@dataclass(frozen=True)
class Descriptions:
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
        return text_of(
            _all_descriptions(),
            "scikit-learn's descriptions",
            self.validation,
            self.train_size,
            self.test_size,
            self.bptt,
            self.evaluation_columns,
        )


def _all_descriptions() -> str:
    """The files in the order of their names, with one kind of line ends."""
    folder = files("sklearn.datasets") / "descr"
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".rst")), key=lambda f: f.name)
    if not found:
        raise UserError("dataset: scikit-learn's descriptions are not in this installation of it")
    texts = (f.read_text(encoding="utf-8") for f in found)
    return "\n\n".join("\n".join(text.splitlines()) for text in texts)
