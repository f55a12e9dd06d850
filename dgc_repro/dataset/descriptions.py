"""The descriptions of data sets that scikit-learn carries in its wheel: a text that is always there.

About 5,000 words of English prose in 14 files. For quick runs and for tests of language models; no
paper's claim is judged on it. What becomes of it: dataset/prose.py.

The text may change with scikit-learn's version (constraints.txt pins it), so the label, and with it
every record, has the first digits of its sha256.

Source: `sklearn/datasets/descr/*.rst`, BSD-3-Clause, the scikit-learn developers.
"""

from __future__ import annotations

from importlib.resources import files

from dgc_repro.dataset.prose import Prose
from dgc_repro.errors import UserError


class Descriptions(Prose):
    """Settings: see `TextSettings`."""

    def source(self) -> tuple[str, str]:
        return _all_descriptions(), "scikit-learn's descriptions"


def _all_descriptions() -> str:
    """The files in the order of their names, with one kind of line ends."""
    folder = files("sklearn.datasets") / "descr"
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".rst")), key=lambda f: f.name)
    if not found:
        raise UserError("dataset: scikit-learn's descriptions are not in this installation of it")
    texts = (f.read_text(encoding="utf-8") for f in found)
    return "\n\n".join("\n".join(text.splitlines()) for text in texts)
