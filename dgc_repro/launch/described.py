"""What each setting means, read from the docstring of the dataclass that has it: ``--help`` has no list of
its own.

A docstring describes a field by its name and a colon, ``bits``: ..., up to the next field or paragraph.
Fields that share a description stand together: ``beta1``, ``beta2``: ... A description that only names
another place ("as in `Sparsifier`") is replaced by that of a base class.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import NamedTuple

from dgc_repro.checked import ANYTHING, kind_of_field

ELSEWHERE = re.compile(r"(as in|see|as) (`|above)")
END = re.compile(
    r"\n\s*\n|\bState( of a matrix)?:|\bRaises \w+|\b(Its|The)\s+other\s+settings\b|\bReturns\b"
)


class Described(NamedTuple):
    """A setting: what it means, what it allows (empty: anything), and the only words that it may be."""

    text: str
    allowed: str = ""
    choices: tuple[str, ...] = ()


def described(cls: type) -> dict[str, Described]:
    """Return what the docstrings of a dataclass and of its bases say of its settings. A setting that none
    describes has an empty text."""
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    texts: dict[str, str] = {}
    for base in cls.__mro__:
        for name, text in _entries(base.__dict__.get("__doc__") or "", names).items():
            if not ELSEWHERE.match(text):
                texts.setdefault(name, text)
    found = {}
    for name in names:
        kind = kind_of_field(cls, name)
        allowed = "" if kind.words == ANYTHING.words else kind.words
        found[name] = Described(texts.get(name, ""), allowed, kind.choices)
    return found


def title_of(cls: type) -> str:
    """Return the first sentence of a docstring; empty where it begins with a setting."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    if next(iter(_starts(text, names)), (1, 0, ()))[0] == 0:
        return ""
    return re.split(r"(?<=[a-z)`])[.:] ", f"{text} ")[0].rstrip(". ")


def _entries(doc: str, names: list[str]) -> dict[str, str]:
    text = inspect.cleandoc(doc)
    starts = _starts(text, names)
    found: dict[str, str] = {}
    ends = [*(start for start, *_ in starts[1:]), len(text)]
    for (_, begin, own), end in zip(starts, ends[: len(starts)], strict=True):
        said = END.split(text[begin:end])[0]
        said = re.sub(r"\bNone\b", "null", said.replace("``", ""))  # as a config has it
        said = " ".join(said.split()).rstrip(" ;.,")
        for name in own:
            found.setdefault(name, said)
    return found


def _starts(text: str, names: list[str]) -> list[tuple[int, int, tuple[str, ...]]]:
    """Of each description in a docstring, where its names and its text begin, and the names."""
    if not names:
        return []
    one = rf"(?:``(?:{'|'.join(names)})``|\b(?:{'|'.join(names)})\b)"
    entry = re.compile(rf"(?:^|(?<=[\n.;)] )|(?<=\n)|(?=``)){one}(?:(?:,| or|, or| and) {one})*:\s")
    return [
        (m.start(), m.end(), tuple(re.findall(r"\w+", re.sub(r"\b(or|and)\b", "", m[0]))))
        for m in entry.finditer(text)
    ]
