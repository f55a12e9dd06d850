"""Markdown of texts that may be somebody else's, and of tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd


def plain(text: str) -> str:
    """Markdown that shows this text as it is: a title or a name, in one line."""
    one_line = " ".join(str(text).split())
    return re.sub(r"[\\`*\[\]<>|]", lambda found: f"&#{ord(found[0])};", one_line)


def inert(text: object) -> str:
    """Markdown of this text without HTML and links: records may be somebody else's."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", str(text)).replace("](", "]&#40;")


def markdown_table(table: pd.DataFrame, *, links: bool = False) -> str:
    """A table of text in markdown; a bar inside a cell is escaped. ``links``: cells may hold links."""

    def line(cells: Sequence[object]) -> str:
        texts = (str(cell) if links else inert(cell) for cell in cells)
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    rows = table.itertuples(index=False, name=None)
    return "\n".join([line(list(table.columns)), "|" + "---|" * table.shape[1], *map(line, rows)])
