"""EECE695D, Efficient ML Systems, distributed training part 2 (lecture): what its artifacts share.

The project has the text of the slides and no figure, so the claims are sentences and the tolerances are ours.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper.claims import Paper
from dgc_repro.paper.frame import Values, number
from dgc_repro.paper.records import Run, require_alike

PAPER = Paper("EECE695D: Efficient ML Systems, Distributed Training part 2", "lecture")
"""For the head of each page."""


def study_of(runs: Sequence[Run], keys: Sequence[str] = ()) -> pd.DataFrame:
    """The lines of all runs, with the ``seed`` of the run. Raises UserError unless all runs of a row have the
    same study settings, and all runs with a model the same values of ``keys``."""
    require_alike(runs, ("scale.name",))
    for row in dict.fromkeys(run.row for run in runs):
        require_alike([run for run in runs if run.row == row], ("study",))
    require_alike([run for run in runs if run.setting("model")], keys)
    return pd.concat([run.lines.assign(seed=run.seed) for run in runs], ignore_index=True)


def exact(values: Values) -> str:
    """A number without noise: no standard deviation."""
    return number(values[:1], 3)
