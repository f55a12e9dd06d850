"""The best static setting in hindsight: what no policy can know, and each can be compared with (regret).

Paper: none. It is given a finished run for each value of its ladder, takes the best one by a number of their
records, and plans that rung from the first step to the last.

Without ``target``: the best number at the end of training. With it: of the runs that reach the target, the
one that has paid the least ``cost`` by the epoch in which it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field as made_of
from pathlib import Path
from typing import Annotated, Any

from dgc_repro import files
from dgc_repro.checked import Rule, checked, one_of
from dgc_repro.checksums import Damaged, verified
from dgc_repro.policy.interface import Plan, State
from dgc_repro.policy.planned import Field, PlansAhead, Rungs

LOWEST, HIGHEST = "lowest", "highest"


@checked
class Oracle(PlansAhead):
    """``field``: the compressor's setting that values are for. ``values``: the ladder, weakest first.
    ``runs``: the folder (or record) of a finished run for each value, in their order; null: none was made;
    a list, one a seed: their mean. ``criterion``: a column of their epochs, that compares them. ``best``:
    whether its lowest or its highest is best. ``target``: a number of it, null for none; ``cost``: another
    column, to be paid until the target is reached."""

    field: Field
    values: Rungs
    runs: Annotated[Sequence[Any], Rule("a list, a run's folder for each value")]
    criterion: str = "validation/loss"
    best: Annotated[str, one_of((LOWEST, HIGHEST))] = LOWEST
    target: float | None = None
    cost: str = "step"
    rung: int = made_of(init=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.runs) != len(self.values):
            raise ValueError(
                f"runs: a run's folder for each of the {len(self.values)} values {list(self.values)!r}, "
                f"null where there is none, got {len(self.runs)}"
            )
        object.__setattr__(self, "rung", self._best())

    def init(self) -> State:
        return {"rung": self.rung}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(state["rung"])

    def score(self, epochs: Sequence[Mapping[str, Any]]) -> float:
        """What a run is judged by, from the records of its epochs; infinite where it misses the target."""
        if self.target is None:
            return _column(epochs[-1], self.criterion, "criterion")
        for epoch in epochs:
            value = _column(epoch, self.criterion, "criterion")
            if value <= self.target if self.best == LOWEST else value >= self.target:
                return _column(epoch, self.cost, "cost")
        return math.inf

    @property
    def _sign(self) -> int:
        """Of a score, so that less is better."""
        return -1 if self.target is None and self.best == HIGHEST else 1

    def _best(self) -> int:
        scores = self._scores()
        if not scores:
            raise ValueError(
                f"runs: a finished run of at least one value, got none in {list(self.runs)!r}; make the "
                "static runs first"
            )
        known = {rung: self._sign * score for rung, score in scores.items() if math.isfinite(score)}
        if not known:
            wanted = "has a finite" if self.target is None else f"reaches {self.target:g} of"
            raise ValueError(f"target: none of the runs {wanted} {self.criterion}")
        return min(known, key=lambda rung: known[rung])

    def _scores(self) -> dict[int, float]:
        """By rung, the mean over its finished runs."""
        scores = {}
        for rung, given in enumerate(self.runs, 1):
            folders = [given] if isinstance(given, str) else list(given or [])
            found = [self.score(epochs) for f in folders if (epochs := finished(Path(str(f))))]
            if found:
                scores[rung] = sum(found) / len(found)
        return scores


def finished(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a finished run; none where there is no such run. Raises ValueError for a damaged one."""
    path = folder / "summary.json"
    try:
        summary = verified(files.parsed_json(files.content(path)), path)
        records = list(files.json_lines(folder / "metrics.jsonl"))
        is_finished = summary.get("status") == "finished"
        epochs = [record for record in records if record.get("kind") == "epoch"]
    except Damaged as error:
        raise ValueError(f"runs: {folder}: {error}; make this run again") from error
    except (OSError, ValueError, AttributeError, TypeError):  # no file, no JSON, no object
        return []
    return epochs if is_finished else []


def _column(epoch: Mapping[str, Any], name: str, field: str) -> float:
    value = epoch.get(name)
    if value is None and name in epoch:
        return math.nan  # the record writes null for it
    if isinstance(value, bool) or not isinstance(value, int | float):
        numbers = sorted(key for key, one in epoch.items() if isinstance(one, int | float))
        raise ValueError(
            f"{field}: a column of the runs' epochs ({', '.join(numbers)}), got {name!r}"
        )
    return float(value)
