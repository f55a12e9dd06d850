"""Whether a method trained as well as dense in the committed results: what `predict` shows beside its row.

A time alone would recommend methods that do not converge. The committed runs are of a reduced model, so
the answer is no promise for another one: `Quality.source` says of which model, data, workers and scale it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, frame
from dgc_repro.paper.claims import Claim
from dgc_repro.paper.gravac import DENSE, LSTM, RESNET101, VGG16
from dgc_repro.paper.gravac.runs import PERPLEXITY, QUALITY, as_good
from dgc_repro.paper.records import Run
from dgc_repro.paper.verdict import judge
from dgc_repro.results import published_runs

POOL = "gravac/small"
NOT_MEASURED = "not measured"
ANSWERS = {
    "agrees": "yes",
    "differs": "no",
    "inconclusive": "unclear",
    "indicative (+)": "yes",
    "indicative (-)": "no",
}
"""By the judge's word."""
METRICS = {QUALITY: "test/accuracy_percent", PERPLEXITY: "test/perplexity"}


class Quality:
    """Answers from the committed runs of one model."""

    def __init__(self, model: str, runs: Sequence[Run] | None = None) -> None:
        """``model``: a class name such as LSTM; of a model without committed runs ResNet101's are taken.
        ``runs``: default, the committed pool."""
        self._model = {"LSTM": LSTM, "VGG16": VGG16}.get(model, RESNET101)
        try:
            published = published_runs(POOL) if runs is None else runs
        except UserError:  # an installed package comes without results/
            published = ()
        self._runs = [
            run for run in published if run.model == self._model and _is_static_training(run)
        ]
        quantities = {
            name: frame.Quantity("", partial(_number, column=column))
            for name, column in METRICS.items()
        }
        self._frame = frame.measure(self._runs, quantities)

    @property
    def source(self) -> str:
        """Where the answers come from, in a sentence."""
        if not self._runs:
            return f"as dense: {NOT_MEASURED}, results/{POOL} is not here"
        first = next(run for run in self._runs if run.method == DENSE)
        return (
            f"as dense: whether the last test {'perplexity' if self._model == LSTM else 'accuracy'} was as "
            f"good as dense's, paired by seed, in results/{POOL}: {facts.model_text(first)}, "
            f"{facts.data_text(self._runs)}, {facts.world_text(first)}, gather; of other models and scales "
            "it says nothing"
        )

    def answer(self, config: Mapping[str, Any]) -> str:
        """yes, no, unclear or not measured, with the number of seeds. ``config``: of a run."""
        found = (run.method for run in self._runs if _is_same_method(run.config, config))
        method = next(found, None)
        if method is None:
            return NOT_MEASURED
        if method == DENSE:
            return "-"
        check = as_good(self._model, method)
        (verdict,) = judge([Claim(method, "as good as dense", "", (check,))], self._frame)
        word = ANSWERS.get(verdict.word, NOT_MEASURED)
        return f"{word} (n={verdict.n})" if verdict.n else word


def _number(run: Run, column: str) -> float:
    return float(run.summary.get(column, math.nan))


def _is_static_training(run: Run) -> bool:
    trained = any(run.summary.get(column) is not None for column in METRICS.values())
    return trained and run.setting("policy._target_") == "dgc_repro.policy.fixed.Fixed"


def _is_same_method(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a recorded config trained the method of ``config``. Settings that the record does not have yet
    are defaults. `per_layer` is left out: which vectors go uncompressed is no part of a method's name."""
    theirs, ours = recorded["compressor"], config["compressor"]
    exchange, own = recorded["exchange"], config["exchange"]
    return (
        _times_fewer(theirs) == _times_fewer(ours)
        and all(ours.get(k) == v for k, v in theirs.items() if k not in ("factor", "density"))
        and _wrappers(recorded) == _wrappers(config)
        and recorded["policy"]["_target_"] == config["policy"]["_target_"]
        and all(exchange[key] == own[key] for key in ("aggregation", "unit"))
    )


def _times_fewer(compressor: Mapping[str, Any]) -> float | None:
    factor, density = compressor.get("factor"), compressor.get("density")
    if density:
        return round(1 / float(density), 6)
    return round(float(factor), 6) if factor else None


def _wrappers(config: Mapping[str, Any]) -> list[str]:
    return [name for name in config["wrap"] if name != "per_layer"]
