"""What `attach` refuses or notes before the ranks meet, and simulated workers that do not fit into memory."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import dgc_repro as D
from dgc_repro import Dense, ErrorFeedback, Fixed, Ladder, MomentumCorrection, PerLayer, Uniform
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.fit import _warn_lost, fit_together, note_lost, refuse_no_policy
from dgc_repro.launch.build import check_memory

GRAVAC = D.GraVAC(theta_min=10, theta_max=1000)
NEST = MomentumCorrection(ErrorFeedback(Uniform(4)))
LADDER = ErrorFeedback(Ladder((Dense(), Uniform(8), Uniform(4))))


class Unfinished(Selecting):
    """Says nothing of how many entries it sends."""

    def select(self, *_: Any) -> Any:
        raise NotImplementedError


class Older(Dense):
    """Of a version before December 2026."""

    def exchange(self) -> None:
        """Yields requests."""


MEASURED = Ladder((Dense(), *(D.PowerSGD(1) for _ in GRAVAC.values)))
FITS = ""
TOGETHER: list[tuple[Any, dict[str, Any], str]] = [
    (LADDER, {"policy": Fixed("bits", (8, 4))}, FITS),
    (ClipLocal(Uniform(4)), {}, FITS),
    (NEST, {"overlap": True}, FITS),
    (LADDER, {}, "policy: plans 1 rungs .* the ladder has 3"),
    (
        ErrorFeedback(Uniform(8)),
        {"policy": Fixed("bits", (8, 4))},
        r"policy: plans 3 rungs .*, and the compressor has no Ladder; give it one: Ladder\(\(Dense\(\), ",
    ),
    (
        LADDER,
        {"policy": Fixed("bits", (8, 2))},
        "policy: rung 2 is bits=2, and the ladder's has bits=4; give a policy whose values",
    ),
    (MEASURED, {"policy": GRAVAC}, "policy: .*PowerSGD cannot be measured; use a policy that plans"),
    (ErrorFeedback(PerLayer(Uniform(4))), {"unit": "model"}, "wrap: .*exchange.unit=model joins"),
    (ClipLocal(Uniform(4)), {"overlap": True}, "wrap: clip_local .* exchange.overlap=true"),
    (ErrorFeedback(MomentumCorrection(Uniform(4))), {}, "wrap: error_feedback around momentum_corr"),
    (Unfinished(), {}, "compressor: Unfinished has no attribute ragged"),
    (ErrorFeedback(Unfinished()), {}, "compressor: Unfinished has no attribute ragged"),
    (Fixed(), {}, "compressor: Fixed is no Compressor; derive it"),
    (ErrorFeedback(Older()), {}, "compressor: Older has an exchange .*; write a step in"),
]  # fmt: skip


@pytest.mark.parametrize(("compressor", "settings", "message"), TOGETHER)
def test_a_misfit_is_refused(compressor: Any, settings: dict[str, Any], message: str) -> None:
    refused = pytest.raises(D.UserError, match=f"^{message}") if message else nullcontext()
    with refused:
        fit_together(
            compressor, **{"policy": Fixed(), "unit": "layer", "overlap": False} | settings
        )


@pytest.mark.parametrize(("given", "name"), [(D.Stepwise, "Stepwise"), ("fixed", "'fixed'")])
def test_a_policy_is_an_object(given: Any, name: str) -> None:
    with pytest.raises(D.UserError, match=rf"^policy: {name} is no policy; give an object"):
        refuse_no_policy(given)
    refuse_no_policy(Fixed())


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf, None, "x", True])
def test_a_learning_rate_is_a_number_from_0(rate: Any) -> None:
    with pytest.raises(D.UserError, match="^learning_rate: a number from 0, got "):
        D.Attached.learning_rate.fset(object(), rate)  # type: ignore[attr-defined]


def test_the_end_of_an_epoch_takes_a_report() -> None:
    with pytest.raises(D.UserError, match="^report: an EpochReport, got float; give EpochReport"):
        D.Attached.end_epoch(object(), 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method",
    [D.TopK(0.1), D.PowerSGD(1), D.OneBit(), D.EFSignSGD(), D.SparseLoCo(), D.DeMo()],
    ids=str,
)
def test_a_method_that_loses_what_it_does_not_send_is_noted_once(method: Compressor) -> None:
    _warn_lost.cache_clear()
    name = type(method).__name__
    message = rf"{name} has no error .*; use ErrorFeedback\({name}\(\.\.\.\)\)$"
    with pytest.warns(UserWarning, match=message):
        note_lost(PerLayer(method))
    note_lost(method)  # warnings are errors
    _warn_lost.cache_clear()
    for quiet in (D.LoCo(method), MomentumCorrection(ErrorFeedback(method))):
        note_lost(quiet)
    for lossy in (MomentumCorrection(method), Ladder((ErrorFeedback(Uniform(8)), method))):
        with pytest.warns(UserWarning, match=name):
            note_lost(lossy)
        _warn_lost.cache_clear()


def test_a_method_that_its_paper_uses_without_error_feedback_is_not_noted() -> None:
    _warn_lost.cache_clear()
    for method in (D.RandomK(0.1, unbiased=True), D.SignSGD(), Uniform(4), D.QSGD(7), Dense()):
        note_lost(method)


def test_simulated_workers_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgc_repro.launch.environment.available_bytes", lambda: 24_000_000_000)
    vgg = {"weight": torch.empty(138_365_992, device="meta")}
    with pytest.raises(D.UserError, match=r"launch.workers: 32 simulated workers need 40.7 GB"):
        check_memory(ErrorFeedback(Uniform(8)), vgg, 32)
    check_memory(Uniform(8), vgg, 32)
