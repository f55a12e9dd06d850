"""The Penn Treebank: three files in a folder, or a checked download; what is missing is said."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from functools import partial
from pathlib import Path

import pytest

from dgc_repro.dataset import download, ptb
from dgc_repro.dataset.ptb import Ptb
from dgc_repro.errors import UserError
from dgc_repro.progress import Progress

TEXTS = {
    "train": " a b a <unk> \n c N a \n",
    "valid": "".join(f" a b v{i} \n" for i in range(20)),
    "test": " c d \n a \n",
}
TORCHTEXT_MD5 = {
    "valid": "aa0affc06ff7c36e977d7cd49e3839bf",
    "test": "8b80168b89c18661a38ef683c0dc3721",
}
"""Of the list that ptb.train.txt is checked by; nobody here could download that one."""
REAL = os.environ.get("DGC_REPRO_DATA")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, text in TEXTS.items():
        (tmp_path / f"ptb.{part}.txt").write_text(text)
    return tmp_path


def test_the_three_files_are_the_three_parts_with_the_training_vocabulary(folder: Path) -> None:
    text = Ptb(root=str(folder)).load()
    # a 3, <eos> 2, then by alphabet <unk> N b c
    assert text.num_classes == 6
    assert text.train.tolist() == [0, 4, 0, 2, 1, 5, 3, 0, 1]
    assert text.test.tolist() == [5, 2, 1, 0, 1]  # d is not in train: <unk>
    assert len(text.validation) == 20 * 4
    assert text.label == "ptb"


def test_valid_as_train_holds_its_last_tenth_out_and_says_so(folder: Path) -> None:
    (folder / "ptb.train.txt").unlink()
    text = Ptb(root=str(folder), train_part="valid").load()
    assert text.label == "ptb (valid as train)"
    assert (len(text.train), len(text.validation)) == (18 * 4, 2 * 4)
    assert text.num_classes == 2 + 18 + 2  # a b, v0 to v17, <eos> <unk>
    unknown = text.validation.view(2, 4)[:, 2]
    assert unknown[0] == unknown[1], "v18 and v19 were never seen in training"


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        ("train", None, r"has no ptb\.train\.txt .*train_part=valid"),
        ("valid", None, r"has no ptb\.valid\.txt; put "),
        ("test", None, r"has no ptb\.test\.txt; put "),
        ("test", "\n\n", r"ptb\.test\.txt has no words"),
    ],
)
def test_a_file_that_is_missing_or_empty_is_named(
    folder: Path, part: str, text: str | None, says: str
) -> None:
    (folder / f"ptb.{part}.txt").unlink()
    if text is not None:
        (folder / f"ptb.{part}.txt").write_text(text)
    with pytest.raises(UserError, match=rf"^dataset\.root: .*{says}"):
        Ptb(root=str(folder)).load()


@pytest.fixture
def mirror(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A mirror on this machine, with the sums of its own files; the work is done elsewhere."""
    monkeypatch.setattr(ptb, "MIRROR", folder.as_uri())
    sums = {
        part: (name, hashlib.new(name, TEXTS[part].encode(), usedforsecurity=False).hexdigest())
        for part, (name, _) in ptb.DIGESTS.items()
    }
    monkeypatch.setattr(ptb, "DIGESTS", sums)
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    return folder


def test_without_a_folder_the_files_are_downloaded_once(mirror: Path) -> None:
    text = Ptb().load()
    assert text.label == "ptb"
    for part, content in TEXTS.items():
        assert (Path("data/ptb") / f"ptb.{part}.txt").read_text() == content
        (mirror / f"ptb.{part}.txt").unlink()
    assert Ptb().load().train.tolist() == text.train.tolist()


def test_a_slow_download_prints_its_progress_once_a_minute(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count(step=21.0)  # seconds between two looks at the clock
    monkeypatch.setattr(download, "CHUNK_BYTES", 4)
    monkeypatch.setattr(download, "Progress", partial(Progress, clock=lambda: next(ticks)))
    Ptb(train_part="valid").load()
    lines = capsys.readouterr().out.splitlines()
    assert lines
    shown = r"downloading ptb\.(valid|test)\.txt: \d+ %, 0 of 0 MB(, about [0-9.]+ (s|min|h) left)?"
    assert all(re.fullmatch(shown, line) for line in lines), lines


@pytest.mark.parametrize(("part", "sum_name"), [("train", "md5"), ("test", "sha256")])
def test_a_damaged_download_is_named_in_one_line_and_not_kept(
    mirror: Path, part: str, sum_name: str
) -> None:
    file = mirror / f"ptb.{part}.txt"
    file.write_text(file.read_text().replace("a", "b", 1))  # as many words, as many bytes
    says = rf"^dataset\.root: downloading .*\(ptb\.{part}\.txt has {sum_name} \w{{16}}\.\.\., exp"
    with pytest.raises(UserError, match=says) as caught:
        Ptb().load()
    assert "\n" not in str(caught.value)
    whole = {"train": set(), "test": {"ptb.train.txt", "ptb.valid.txt"}}[part]
    assert {path.name for path in Path("data").glob("ptb/[!.]*")} == whole
    assert Path("data/ptb").exists() == bool(whole)


@pytest.mark.skipif(REAL is None, reason="no real data here; name its folder in DGC_REPRO_DATA")
def test_the_real_validation_and_test_files() -> None:
    root = Path(str(REAL)) / "ptb"
    text = Ptb(root=str(root), train_part="valid").load()
    assert len(text.train) + len(text.validation) == 70_390 + 3_370
    assert len(text.test) == 78_669 + 3_761
    for part, listed in TORCHTEXT_MD5.items():
        data = (root / f"ptb.{part}.txt").read_bytes()
        assert ptb.DIGESTS[part] == ("sha256", hashlib.sha256(data).hexdigest())
        assert hashlib.md5(data, usedforsecurity=False).hexdigest() == listed
