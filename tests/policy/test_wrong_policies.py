"""A wrong setting is one line that names it, its range and what was given; no key of the command line,
because own loops build policies too."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from dgc_repro import Accordion, AdaQS, Fixed, GraVAC, ScaDLES, Scheduled, Stepwise, Warmup
from dgc_repro.policy.factors import factors_between
from dgc_repro.policy.probed import Probed

LADDER = {"field": "bits", "values": (8, 4)}
DEFAULTS: dict[Any, dict[str, Any]] = {
    Accordion: {"field": "density", "values": (0.1, 0.01)},
    AdaQS: {"field": "bits", "values": (16, 8, 4)},
    ScaDLES: {"field": "density", "values": (0.1,)},
    Scheduled: {"field": "density", "values": (0.1, 0.01), "rungs": [[0, 1], [3, 2]]},
    Stepwise: {
        "field": "bits",
        "values": (16, 12, 8, 4),
        "accuracy_thresholds": (50.0, 70.0, 80.0),
    },
    Warmup: {"field": "density", "values": (0.25, 0.0625)},
}
PAIR = "field: names the compressor's setting"
ONCE = "values: each setting once, weakest first"
DOWN = "accuracy_thresholds: one for each step down, 3 for the 4"
ASCENDING = "accuracy_thresholds: ascending, in percent"
DIFFERENCES = "loss_differences: null or one from 0 for each step"
BESIDE = "does nothing beside ladder"
BITS = {"field": "bits", "ladder": [8, 4]}

WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Fixed, {"field": "bits"}, f"{PAIR} that values are for"),
    (Fixed, {"values": (8, 4)}, f"{PAIR} that values are for"),
    (Fixed, {"field": "bits", "values": (8, 8)}, f"{ONCE}, got [8, 8]"),
    (Fixed, {**LADDER, "rung": 3}, "rung: 0 (dense) to 2"),
    (Fixed, {**LADDER, "rung": -1}, "rung: 0 (dense) to 2"),
    (Fixed, {"rung": 1}, "rung: 0 (dense) to 0"),
    (Accordion, {"values": (0.1,)}, "values: the low compression and the high one"),
    (Accordion, {"eta": 0}, "eta: a relative change above 0, got 0"),
    (Accordion, {"interval": 0}, "interval: a whole number of epochs from 1, got 0"),
    (Accordion, {"norm": "max"}, "norm: one of mean, own, got 'max'"),
    (Accordion, {"decay": 2}, "decay: above 0 and at most 1, or null, got 2"),
    (AdaQS, {"falls_by": 1}, "falls_by: a fraction above 0 and below 1, got 1"),
    (AdaQS, {"falls_by": 0}, "falls_by: a fraction above 0"),
    (AdaQS, {"smoothing": 2}, "smoothing: a fraction above 0"),
    (AdaQS, {"least_steps": 0}, "least_steps: a whole number from 1, got 0"),
    (Probed, {"field": "factor"}, f"{PAIR} that value is for"),
    (Probed, {"value": 10}, f"{PAIR} that value is for"),
    (Probed, {"spread": "no"}, "spread: true or false, got 'no'"),
    (ScaDLES, {"values": (0.1, 0.01)}, "values: one value, that of compressed steps"),
    (ScaDLES, {"delta": 0}, "delta: above 0 and at most 1, got 0"),
    (Scheduled, {"rungs": [[1, 1]]}, "rungs: the first begins at 0"),
    (Scheduled, {"rungs": [[0, 1], [0, 2]]}, "rungs: the first begins at 0"),
    (Scheduled, {"rungs": [1]}, "rungs: pairs of the first epoch"),
    (Scheduled, {"rungs": {0: 1}}, "rungs: pairs of the first epoch"),
    (Scheduled, {"rungs": [[0, 3]]}, "rungs: 0 (dense) to 2"),
    (Scheduled, {"rungs": [[0, -1]]}, "rungs: whole numbers from 0"),
    (Scheduled, {"rungs": [[0, 1], ["a", 1]]}, "rungs: whole numbers from 0"),
    (Scheduled, {"by": "day"}, "by: step or epoch, got 'day'"),
    *((kind, {"values": ()}, PAIR) for kind in (Scheduled, Stepwise, Warmup)),
    *((Stepwise, {"accuracy_thresholds": given}, DOWN) for given in ((50.0, 70.0), ())),
    *((Stepwise, {"accuracy_thresholds": given}, ASCENDING)
      for given in ((70, 50, 80), (50, 70, 101), (-1, 70, 80), (50, math.nan, 80))),
    *((Stepwise, {"loss_differences": given}, DIFFERENCES) for given in ((0.1,), (0.1, -1, 0.1))),
    (Stepwise, {"patience_epochs": 0}, "patience_epochs: at least 1"),
    (Stepwise, {"dense_epochs": -1}, "patience_epochs: at least 1 (and dense_epochs at least 0)"),
    (Stepwise, {"values": (8, 8, 4, 2)}, ONCE),
    (Stepwise, {"field": None}, PAIR),
    (Warmup, {"field": None, "values": []}, "values: at least one setting, weakest first, got none"),
    (Warmup, {"values": [0.1, 0.1]}, ONCE),
    *((Warmup, {"epochs_each": given}, f"epochs_each: a whole number from 1, got {given}")
      for given in (0, 1.5, True)),
    (GraVAC, {"eps": 0}, "eps: a share above 0 and at most 1, got 0"),
    (GraVAC, {"eps": 1.5}, "eps: a share above 0 and at most 1, got 1.5"),
    (GraVAC, {"theta_min": 50, "theta_max": 20}, "theta_min: at most theta_max, got 50 above 20"),
    (GraVAC, {"theta_min": 0.5}, "theta_min: a factor from 1, got 0.5"),
    (GraVAC, {"window": 0}, "window: a whole number from 1, got 0"),
    (GraVAC, {"omega": -0.1}, "omega: a share from 0, 0.01 is 1 %, got -0.1"),
    (GraVAC, {"ratio": 1}, "ratio: a number above 1, got 1"),
    (GraVAC, {"ratio": 1.01, "scaling": "geometric"}, "ratio: 1.01 makes more than 64 factors"),
    (GraVAC, {"smoothing": 0}, "smoothing: above 0 and at most 1, got 0"),
    (GraVAC, {"scaling": "linear"}, "scaling: one of exponential, geometric, got 'linear'"),
    (GraVAC, {"gain": "both"}, "gain: one of energy, norm, got 'both'"),
    (GraVAC, {"average": "mean"}, "average: one of ratio_of_averages, average_of_ratios"),
    (GraVAC, {"throughput": "all"}, "throughput: one of window, last, got 'all'"),
    (GraVAC, {"freeze": 1}, "freeze: true or false, got 1"),
    (GraVAC, {"workers": 0}, "workers: a whole number from 1, got 0"),
    (GraVAC, {"decide": "later"}, "decide: one of now, last, got 'later'"),
    (GraVAC, {"ladder": "16,8"}, "ladder: settings, weakest first, or null, got '16,8'"),
    (GraVAC, {"ladder": []}, "ladder: settings, weakest first, or null, got []"),
    (GraVAC, {"ladder": [8, 8]}, f"{ONCE}, got [8, 8]"),
    # What has no effect.
    (GraVAC, {"ratio": 4}, "ratio: does nothing with scaling=exponential; give scaling="),
    *((GraVAC, {**BITS, key: given}, f"{key}: {BESIDE}")
      for key, given in (("theta_min", 20), ("theta_max", 500), ("scaling", "geometric"), ("ratio", 4))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "message"), WRONG)
def test_a_wrong_setting_is_named(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)) as refused:
        kind(**DEFAULTS.get(kind, {}) | settings)
    assert not re.search(
        r"\b(compressor|exchange|policy|wrapper|train|wrap)[.=]|\n", str(refused.value)
    )
    if "does nothing" in message:
        assert str(refused.value).endswith(f", got {settings[message.split(':')[0]]!r}")


def test_a_setting_at_its_default_is_not_refused_where_it_has_no_effect() -> None:
    assert GraVAC(ratio=2).values == GraVAC().values
    given = GraVAC(ladder=[8, 4], theta_min=10, theta_max=1000, scaling="exponential", ratio=2)
    assert given.values == (8, 4)


def test_what_is_refused_as_without_effect_has_none() -> None:
    factors = [factors_between(10, 1000, "exponential", ratio) for ratio in (2, 4)]
    assert factors[0] == factors[1]
    assert GraVAC(smoothing=0.5, workers=32).weight == GraVAC(smoothing=0.5, workers=2).weight
