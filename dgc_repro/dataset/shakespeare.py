"""Tiny Shakespeare, character by character: 1,115,394 characters, 65 of them different.

char-rnn and nanoGPT use this text. nanoGPT's validation loss of 1.88 nats a character (its settings for a
CPU) is a number that many readers know. As there, the first 90 % are to train on, and the last 10 % are
scored: they are the test part here. The validation part is the beginning of the text: the plays near its end
stay whole, since the text to score goes on where the text to train on ends.

Two ways to have it: a folder with input.txt (`dataset.root`), or a download from char-rnn's repository into
./data/shakespeare, checked by its sha256. A folder that is named has to hold the file already.

Source: Karpathy, char-rnn, 2015, data/tinyshakespeare.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import torch

from dgc_repro.checked import Count, checked, one_of, within
from dgc_repro.dataset.download import downloading, fetch
from dgc_repro.dataset.text import READINGS, WINDOWS, Text, TextSettings
from dgc_repro.errors import UserError

URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
DEFAULT_FOLDER = Path("data") / "shakespeare"
FILE = "input.txt"
TRAINED_ON = 0.9
LEAST = 20  # characters: two in each part
BOTH_WAYS = "put input.txt into a folder and name it, or leave it null for a download into ./data/shakespeare"


@checked
class Shakespeare(TextSettings):
    """root: folder with input.txt; None is ./data/shakespeare, and downloads the file if it is not there.
    validation: characters held out at the beginning. Sizes count characters. The other settings: see
    `TextSettings`.
    """

    root: str | None = None
    validation: Annotated[int, within(2, name="a whole number of characters")] = 20_000
    bptt: Count = 64
    evaluation_columns: Count = 64
    reading: Annotated[str, one_of(READINGS)] = WINDOWS

    def load(self) -> Text:
        """Read or download the text. Raises UserError if folder or sizes do not fit."""
        path = self._folder() / FILE
        try:
            characters = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"dataset.root: {path} cannot be read as text ({error})") from error
        if len(characters) < LEAST:
            raise UserError(
                f"dataset.root: {path} has {len(characters)} characters, and three parts of it need {LEAST} "
                "at least; name another folder"
            )
        end = int(TRAINED_ON * len(characters))
        if self.validation > end - 2:
            raise UserError(
                f"dataset.validation: at most {end - 2}, which leaves two characters of "
                f"{path.name} to train on, got {self.validation}"
            )
        numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
        whole = torch.tensor([numbers[character] for character in characters], dtype=torch.int64)
        first = self.validation
        parts = whole[first:end], whole[:first], whole[end:]
        is_known = hashlib.sha256(characters.encode()).hexdigest() == SHA256
        label = "shakespeare" if is_known else f"another {FILE}"
        return self._text(parts, len(numbers), f"{label} (characters)")

    def _folder(self) -> Path:
        if self.root is not None:
            root = Path(self.root).expanduser()
            if not (root / FILE).is_file():
                raise UserError(f"dataset.root: {root} has no {FILE}; {BOTH_WAYS}")
            return root
        if not (DEFAULT_FOLDER / FILE).is_file():
            with downloading("tiny Shakespeare", DEFAULT_FOLDER, f"from {URL}", FILE):
                if not (DEFAULT_FOLDER / FILE).is_file():  # nor has another rank fetched it
                    fetch(URL, DEFAULT_FOLDER / FILE, "sha256", SHA256)
        return DEFAULT_FOLDER
