"""Three tables of generalization measures, over a grid of seven hyper-parameters with two values each."""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.paper import frame as frames
from dgc_repro.paper.page import Page, made
from dgc_repro.paper.records import Run


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale."""
    return made(__file__, scale, runs, frames.lines([]), [])
