"""The errors that are shown as a line and not as a traceback: a user's, and a full disk."""

from __future__ import annotations

import argparse
import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

MOST_LETTERS = 300  # of an error's line
LONG_WORD, LONG_MESSAGE = 240, 1500
"""Letters of a word and of a message from which `shown` shortens them. Paths are words."""
REPRO_LIBRARIES = (
    *("PIL", "filelock", "hydra", "matplotlib", "omegaconf", "pandas", "pyarrow", "rich"),
    *("scipy", "sklearn", "torchvision", "yaml"),
)
"""What the extra ``repro`` of pyproject.toml installs, by the names that are imported."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_WORD = re.compile(rf"\S{{{LONG_WORD + 1},}}")


def shown(text: str) -> str:
    """Return a text as a terminal may get it: control characters as escapes (\\x1b), and long words and
    messages without their middle."""
    text = CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    text = _WORD.sub(lambda found: _shortened(found[0], LONG_WORD), text)
    return _shortened(text, LONG_MESSAGE)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}...({len(text):,} letters)...{text[-most // 4 :]}"


class UserError(ValueError):
    """Something only the user can mend: a setting, a file, a missing device.

    The message is one line that begins with the config key (``dataset.root: ...``) and ends with
    the likely fix. The entry points print it and exit with code 2. It may repeat a value that the user or a
    stranger's file has given: `shown` makes that safe.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shown(str(message)))


class Parser(argparse.ArgumentParser):
    """A parser of flags whose refusals are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        said = message.removeprefix("argument ")
        raise UserError(f"{said}; {self.prog} --help lists the arguments")


class MissingExtra(UserError, ImportError):
    """A library is missing that the extra ``repro`` installs."""


@contextmanager
def needing_repro(what: str) -> Iterator[None]:
    """Raise MissingExtra where what is done inside, which ``what`` names, misses a library of the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in REPRO_LIBRARIES:
            raise
        raise MissingExtra(
            f"{what} needs {library}, which is not installed; pip install 'dgc_repro[repro]'"
        ) from error


class DiskFull(OSError):
    """There is no space left on the disk of a file, or a quota is used up."""

    def __init__(self, path: object) -> None:
        super().__init__(errno.ENOSPC, "no space left", str(path))

    def __str__(self) -> str:
        return f"no space left on the disk of {self.filename}; free some"


def full_disk(error: BaseException | None, place: object) -> DiskFull | None:
    """The full disk that an error is about, or that has caused it; ``place``: where the error names no file.
    torch.save, for one, ends with a RuntimeError."""
    found: DiskFull | None = None
    while error is not None and not (found and found.filename != str(place)):
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            found = DiskFull(error.filename or place)
        error = error.__cause__ or error.__context__
    return found


def one_line(error: BaseException) -> str:
    """An error's type and message; of a full disk, its file."""
    if full := full_disk(error, "a file"):
        return str(full)
    return shown(" ".join(f"{type(error).__name__}: {error}".split()))[:MOST_LETTERS]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise DiskFull where what is done inside finds no space for this file: the system's own error has no
    file name."""
    try:
        yield
    except Exception as error:
        if full := full_disk(error, path):
            raise full from error
        raise


def refuse_first_of(problems: Mapping[str, bool]) -> None:
    """Raise UserError with the first problem that applies."""
    for text, applies in problems.items():
        if applies:
            raise UserError(text)
