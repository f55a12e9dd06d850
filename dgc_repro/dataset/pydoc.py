"""The English of Python's own documentation topics, which its interpreter carries for `help()`.

About 68,000 words of technical prose (`pydoc_data.topics` of Python 3.11), ten times the other embedded text:
for quick runs and for tests of language models where no network is at hand; no paper's claim is judged on
it. What becomes of it: dataset/prose.py. The text differs between versions of Python, which the label says.

Source: the Python documentation, PSF-2.0, the Python Software Foundation.
"""

from __future__ import annotations

import importlib
import platform

from dgc_repro.dataset.prose import Prose
from dgc_repro.errors import UserError


class Pydoc(Prose):
    """Settings: see `TextSettings`."""

    def source(self) -> tuple[str, str]:
        version = ".".join(platform.python_version_tuple()[:2])
        return _all_topics(), f"topics of Python {version}'s documentation"


def _all_topics() -> str:
    """The topics in the order of their names, with one kind of line ends."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "dataset: this Python comes without pydoc_data.topics (some distributions leave it out); "
            "use dataset=descriptions"
        ) from error
    return "\n\n".join("\n".join(topics[name].splitlines()) for name in sorted(topics))
