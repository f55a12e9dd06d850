"""Arguments of `attach` that are refused before the ranks meet, and a state that is none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dgc_repro import Dense, Fixed, GraVAC, Ladder, PowerSGD, Stepwise, UserError
from dgc_repro.exchange.attached import Attached
from dgc_repro.exchange.fit import fit_together, refuse_no_policy


@pytest.mark.parametrize(("given", "name"), [(Stepwise, "Stepwise"), ("fixed", "'fixed'")])
def test_a_policy_is_an_object(given: Any, name: str) -> None:
    with pytest.raises(UserError, match=rf"^policy: {name} is no policy; give an object"):
        refuse_no_policy(given)
    refuse_no_policy(Fixed())


def test_a_policy_that_measures_needs_rungs_that_can_be_measured() -> None:
    rungs = (PowerSGD(1) for _ in GraVAC(theta_min=10, theta_max=1000).values)
    ladder = Ladder((Dense(), *rungs))
    policy = GraVAC(theta_min=10, theta_max=1000)
    with pytest.raises(UserError, match="PowerSGD cannot be measured; use a policy that plans"):
        fit_together(ladder, policy, "layer", overlap=False)


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, None, "x", True])
def test_a_learning_rate_is_a_number_from_0(rate: Any) -> None:
    with pytest.raises(UserError, match="^learning_rate: a number from 0, got "):
        Attached.learning_rate.fset(object(), rate)  # type: ignore[attr-defined]
