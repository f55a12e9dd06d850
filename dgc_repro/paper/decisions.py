"""The decisions of a run by step: a table of decisions.jsonl.

A line of the file holds the decision of a step and the time of the step before. In the table each time is in
the row of its own step, and long runs are thinned to evenly spaced steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgc_repro.errors import UserError
from dgc_repro.paper.untrusted import json_lines

if TYPE_CHECKING:
    import pandas as pd

DECISIONS_FILE = "decisions.jsonl"
MOST_STEPS = 1000
"""Of the decisions of a run in a table."""
_TIMES = ("seconds", "samples", "throughput", "own_square", "mean_square")
DECISIONS = (
    *("step", "branch", "factor", "theta_min", "candidate", "gain_theta_min", "gain_candidate"),
    *("gain", "norm_before", "norm_after", "raw_norms", "sent_norms", *_TIMES),
    "candidate_norms",
)
"""``step``: from 1; ``branch``: candidate, theta_min or dense; ``factor``: of what was sent, 1 is dense;
``gain``: of what was sent; ``norm_before``, ``norm_after``: of the whole error-fed gradient and of what was
sent; ``raw_norms``, ``sent_norms``, ``candidate_norms``: sums over tensors of the norms of the gradient
without its residual, of what was sent (none for a dense step), and of what the candidate would send."""
_SENT = {"theta_min": 1, "candidate": 2}
"""By branch, the place among the energies of what was sent; dense sends all of it."""
_DECIDED = ("branch", "theta_min", "candidate", "gain_theta_min", "gain_candidate", "gain")
_PREFIX = "decision/"


def decisions_of(folder: Path) -> pd.DataFrame:
    """Return the decisions of a run folder by step, at most `MOST_STEPS` of them: every k-th from the first
    one on. No rows where nothing was decided. UserError names a broken line."""
    path = folder / DECISIONS_FILE
    found: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(json_lines(path) if path.is_file() else (), start=1):
        if not isinstance(step := line.get("decision"), int):
            raise UserError(f"{path}: line {number} has no step; run again from its checkpoint")
        entry = {k.removeprefix(_PREFIX): v for k, v in line.items() if k.startswith(_PREFIX)}
        found.setdefault(step, {}).update(_decided(entry))
        if (timed := entry.get("timed_step")) is not None:
            times = {name: entry.get(f"timed_{name}") for name in _TIMES}
            found.setdefault(int(timed) + 1, {}).update(times)
    table = _typed([{"step": step, **found[step]} for step in sorted(found)])
    return table.iloc[:: max(1, math.ceil(len(table) / MOST_STEPS))].reset_index(drop=True)


def _decided(line: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one decision; none where a policy only records."""
    branch = line.get("branch")
    if branch is None:
        return {}
    numbers = [float(number) for number in line.get("energies") or ()]
    norms = [math.sqrt(energy) if energy > 0 else 0.0 for energy in numbers[:3]]
    found = {name: line.get(name) for name in _DECIDED}
    found["factor"] = line.get(branch) if branch in _SENT else 1.0
    if norms:
        found |= {"norm_before": norms[0], "norm_after": norms[_SENT.get(branch, 0)]}
    if len(numbers) > 3:
        found["raw_norms"] = numbers[3]
        found["sent_norms"] = numbers[3 + _SENT[branch]] if branch in _SENT else None
        found["candidate_norms"] = numbers[3 + _SENT["candidate"]]
    return found


def _typed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """All columns, in order: steps whole numbers, branches words, all else numbers."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(DECISIONS))
    types: dict[str, Any] = {"step": "int64", "branch": object}
    numbers = [name for name in DECISIONS if name not in types]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    return table.astype(types)
