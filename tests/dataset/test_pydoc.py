"""The embedded text of Python's documentation: what differs from the other embedded one."""

from __future__ import annotations

import sys

import pytest

from dgc_repro.dataset.pydoc import Pydoc
from dgc_repro.errors import UserError


def test_it_is_a_text_of_some_size_in_plain_words() -> None:
    text = Pydoc().load()
    assert len(text.train) > 40_000
    assert 0.05 < len(text.validation) / len(text.train) < 0.3
    assert 0.05 < len(text.test) / len(text.train) < 0.3
    assert 2_000 < text.num_classes < 10_000
    assert int(text.train.max()) == text.num_classes - 1


def test_the_label_says_which_python_it_is_of() -> None:
    label = Pydoc(train_size=1000).load().label
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in label
    assert "sha256" in label


def test_a_python_without_its_topics_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"^dataset: this Python comes without pydoc_data.topics"):
        Pydoc().load()
