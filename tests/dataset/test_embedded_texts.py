"""The embedded texts: always there, plain words, three parts that share no paragraph."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dgc_repro.dataset import descriptions
from dgc_repro.dataset.descriptions import Descriptions
from dgc_repro.dataset.pydoc import Pydoc
from dgc_repro.errors import UserError


def test_the_text_is_the_one_that_the_constraints_pin() -> None:
    # The quick results are of this text; another scikit-learn may word its descriptions otherwise,
    # which the label then says.
    pinned = Path(__file__).parents[2] / "constraints.txt"
    if f"scikit-learn=={version('scikit-learn')}" not in pinned.read_text():
        pytest.skip("another scikit-learn than constraints.txt pins")
    text = Descriptions().load()
    assert text.label == "scikit-learn's descriptions (embedded, sha256 ed191c36)"
    assert (len(text.train), len(text.validation), len(text.test)) == (4995, 521, 568)
    assert text.num_classes == 615


def test_the_label_has_the_first_digits_of_the_sum_of_what_was_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = "\n\n".join(f"Paragraph number {i}, the same words." for i in range(20))
    monkeypatch.setattr(descriptions, "_all_descriptions", lambda: raw)
    text = Descriptions().load()
    assert hashlib.sha256(raw.encode()).hexdigest()[:8] in text.label
    # <eos> N number paragraph same the words <unk>: 16 paragraphs of 7
    assert len(text.train) == 16 * 7
    assert (len(text.validation), len(text.test)) == (2 * 7, 2 * 7)
    assert text.num_classes == 8


def test_every_part_has_unknown_words_because_rare_ones_have_no_number() -> None:
    text = Descriptions().load()
    counts = text.train.bincount(minlength=text.num_classes)
    assert counts.min() >= 2, "training has seen every word that has a number"
    assert int(text.train.max()) == text.num_classes - 1


def test_sizes_take_the_first_words_and_no_more_than_there_are() -> None:
    whole, some = Descriptions().load(), Descriptions(train_size=100, test_size=50).load()
    assert some.train.tolist() == whole.train[:100].tolist()
    assert len(some.test) == 50
    assert some.num_classes == whole.num_classes
    with pytest.raises(UserError, match=re.escape("dataset.train_size: at most 4995")):
        Descriptions(train_size=1_000_000).load()


def test_the_topics_of_pydoc_are_a_text_of_some_size_in_plain_words() -> None:
    text = Pydoc().load()
    assert len(text.train) > 40_000
    assert 0.05 < len(text.validation) / len(text.train) < 0.3
    assert 0.05 < len(text.test) / len(text.train) < 0.3
    assert 2_000 < text.num_classes < 10_000
    assert int(text.train.max()) == text.num_classes - 1


def test_a_python_without_its_topics_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"^dataset: this Python comes without pydoc_data.topics"):
        Pydoc().load()
