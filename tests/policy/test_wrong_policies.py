"""A wrong setting is one line that names it, its range and what was given; no key of the command line,
because own loops build policies too."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from dgc_repro import Accordion, AdaQS, Fixed, GraVAC, ScaDLES, Scheduled, Stepwise, Warmup
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
SETTINGS = "(numbers or words), weakest first, each once"
LIST = f"a list of one or more settings {SETTINGS}"
DOWN = "accuracy_thresholds: one for each step down, 3 for the 4"
ASCENDING = "accuracy_thresholds: percentages (0 to 100), ascending"
FIRST = "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0"
BESIDE = "does nothing beside ladder"
BITS = {"field": "bits", "ladder": [8, 4]}

# Rules that annotations cannot say, and one range for each policy: tests/test_checked.py has the others.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (Fixed, {"field": "bits"}, f"{PAIR} that values are for"),
    (Fixed, {"values": (8, 4)}, f"{PAIR} that values are for"),
    (Fixed, {"field": "bits", "values": (8, 8)}, f"values: a list of settings {SETTINGS}, got (8, 8)"),
    (Fixed, {**LADDER, "rung": 3}, "rung: 0 (dense) to 2"),
    (Fixed, {"rung": 1}, "rung: 0 (dense) to 0"),
    (Accordion, {"values": (0.1,)},
     f"values: a list of the low compression and the high one {SETTINGS}, got (0.1,)"),
    (Accordion, {"eta": 0}, "eta: a relative change above 0, got 0"),
    (Accordion, {"decay": 2}, "decay: a number above 0 and at most 1, or null, got 2"),
    (AdaQS, {"falls_by": 1}, "falls_by: a fraction above 0 and below 1, got 1"),
    (AdaQS, {"smoothing": 1.0}, "smoothing: a number above 0 and below 1, got 1.0"),
    (Probed, {"field": "factor"}, f"{PAIR} that value is for"),
    (Probed, {"value": 10}, f"{PAIR} that value is for"),
    (ScaDLES, {"values": (0.1, 0.01)}, "values: a list of one value, that of compressed steps"),
    *((Scheduled, {"rungs": given}, f"{FIRST}, such as [[0, 1], [5, 2]], got {given}")
      for given in ([[1, 1]], [[0, 1], [0, 2]], [1], [[0, -1]])),
    (Scheduled, {"rungs": [[0, 3]]}, "rungs: 0 (dense) to 2"),
    *((kind, {"values": ()}, f"values: {LIST}, got ()") for kind in (Scheduled, Stepwise, Warmup)),
    *((Stepwise, {"accuracy_thresholds": given}, DOWN) for given in ((50.0, 70.0), ())),
    *((Stepwise, {"accuracy_thresholds": given}, f"{ASCENDING}, got {given}")
      for given in ((70, 50, 80), (50, 70, 101), (50, math.nan, 80))),
    (Stepwise, {"loss_differences": (0.1,)}, "loss_differences: one for each step down, 3 for the 4 values"),
    (Stepwise, {"loss_differences": (0.1, -1, 0.1)},
     "loss_differences: a list, each a number from 0, or null, got (0.1, -1, 0.1)"),
    (Stepwise, {"values": (8, 8, 4, 2)}, f"values: {LIST}, got (8, 8, 4, 2)"),
    *((kind, {"field": None}, "field: a word, got None") for kind in (Stepwise, Warmup)),
    *((Warmup, {"values": given}, f"values: {LIST}, got {given}") for given in ([], [0.1, 0.1])),
    (GraVAC, {"eps": 1.5}, "eps: a share above 0 and at most 1, got 1.5"),
    (GraVAC, {"theta_min": 50, "theta_max": 20}, "theta_min: at most theta_max, got 50 above 20"),
    (GraVAC, {"theta_min": 0.5}, "theta_min: a factor from 1, got 0.5"),
    (GraVAC, {"ratio": 1}, "ratio: a number above 1, got 1"),
    (GraVAC, {"ratio": 1.01, "scaling": "geometric"}, "ratio: 1.01 makes more than 64 factors"),
    *((GraVAC, {"ladder": given}, f"ladder: {LIST}, or null, got {given!r}")
      for given in ("16,8", [], [8, 8])),
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
