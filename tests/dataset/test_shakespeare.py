"""Tiny Shakespeare: a file in a folder, or a checked download; what does not fit is said in one line."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dgc_repro.dataset import shakespeare
from dgc_repro.dataset.shakespeare import Shakespeare
from dgc_repro.errors import UserError

TEXT = "abc dé\n" * 20  # 140 characters, 7 of them different: \n, space, a, b, c, d, é
REAL = os.environ.get("DGC_REPRO_DATA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def settings(folder: Path, **others: object) -> Shakespeare:
    return Shakespeare(**{"root": str(folder), "validation": 20, "bptt": 4} | others)  # type: ignore[arg-type]


def test_the_last_tenth_is_scored_and_the_validation_part_begins_the_text(folder: Path) -> None:
    text = settings(folder).load()
    assert text.label == "another input.txt (characters)"  # it is not tiny Shakespeare
    parts = text.train, text.validation, text.test
    assert [len(part) for part in parts] == [106, 20, 14]
    characters = sorted(set(TEXT))
    assert text.num_classes == len(characters) == 7
    whole = torch.cat((text.validation, text.train, text.test)).tolist()
    assert "".join(characters[number] for number in whole) == TEXT


def test_lines_that_end_as_on_windows_are_the_same_text(folder: Path) -> None:
    one = settings(folder).load()
    (folder / "input.txt").write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert torch.equal(settings(folder).load().train, one.train)


def test_an_epoch_of_windows_is_what_it_is_given_or_all_there_is_to_train_on(folder: Path) -> None:
    assert settings(folder).load().windows == 106
    assert settings(folder, train_size=50).load().windows == 50
    assert settings(folder, epoch_size=1000).load().windows == 1000
    assert settings(folder, reading="columns").load().windows is None
    with pytest.raises(ValueError, match=r"^epoch_size: .*reading=columns .* got 7; use null"):
        settings(folder, reading="columns", epoch_size=7)


@pytest.mark.parametrize(
    ("data", "given", "says"),
    [
        (TEXT.encode(), {"validation": 125}, r"validation: at most 124, .* got 125"),
        (TEXT.encode(), {"train_size": 107}, r"train_size: at most 106, .* got 107"),
        (TEXT.encode(), {"test_size": 15}, r"test_size: at most 14, .* got 15"),
        (None, {}, r"root: .* has no input\.txt; put "),
        (None, {"root": "nowhere"}, r"root: .* has no input\.txt; put "),
        (b"", {}, r"root: .*input\.txt has 0 characters, and three parts"),
        (b"x" * 19, {"validation": 2}, r"root: .*input\.txt has 19 characters, and three parts"),
        (b"caf\xe9 " * 100, {}, r"root: .*input\.txt cannot be read as text"),
    ],
)
def test_a_text_that_does_not_fit_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    data: bytes | None,
    given: dict[str, Any],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if data is not None:
        (tmp_path / "input.txt").write_bytes(data)
    with pytest.raises(UserError, match=rf"^dataset\.{says}") as caught:
        settings(tmp_path, **given).load()
    assert "\n" not in str(caught.value)
    assert not Path("nowhere").exists()


def test_the_file_is_downloaded_once_and_not_kept_where_its_checksum_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = folder / "input.txt"
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    monkeypatch.setattr(shakespeare, "URL", mirror.as_uri())
    says = r"^dataset\.root: downloading tiny Shakespeare .*input\.txt has sha256 \w{16}\.\.\., exp"
    with pytest.raises(UserError, match=says) as caught:
        Shakespeare().load()
    assert "\n" not in str(caught.value)
    assert not Path("data/shakespeare").exists()

    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(TEXT.encode()).hexdigest())
    text = Shakespeare(validation=20).load()
    assert text.label == "shakespeare (characters)"
    mirror.unlink()
    assert torch.equal(Shakespeare(validation=20).load().train, text.train)


@pytest.mark.skipif(REAL is None, reason="no real data here; name its folder in DGC_REPRO_DATA")
def test_the_real_text_has_the_sizes_of_char_rnn() -> None:
    text = Shakespeare(root=str(Path(str(REAL)) / "shakespeare")).load()
    assert text.label == "shakespeare (characters)"
    assert text.num_classes == 65
    assert [len(text.train) + len(text.validation), len(text.test)] == [1_003_854, 111_540]
