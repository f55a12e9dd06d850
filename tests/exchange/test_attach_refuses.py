"""What `attach` refuses before anything is sent, and what error feedback refuses to wrap."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.loco import LoCo
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.sparseloco import SparseLoCo
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.errors import UserError
from dgc_repro.exchange.fit import _warn_lost, fit_together, note_lost
from dgc_repro.kernel.select import Selection
from dgc_repro.launch.build import check_memory
from dgc_repro.policy.fixed import Fixed

LADDER = Ladder((Dense(), Uniform(8), Uniform(4)))


def test_a_ladder_without_a_policy_that_names_its_rungs_is_refused() -> None:
    with pytest.raises(ValueError, match="plans 1 rungs .* the ladder has 3"):
        fit_together(ErrorFeedback(LADDER), Fixed(), "layer", False)
    fit_together(ErrorFeedback(LADDER), Fixed("bits", (8, 4)), "layer", False)


def test_a_choice_between_tensors_is_refused_where_they_are_joined() -> None:
    with pytest.raises(ValueError, match="exchange.unit=model joins"):
        fit_together(ErrorFeedback(PerLayer(Uniform(4))), Fixed(), "model", False)


def test_error_feedback_in_error_feedback_is_refused() -> None:
    with pytest.raises(ValueError, match="every residual twice"):
        ErrorFeedback(ErrorFeedback(Uniform(4)))


def test_an_order_of_wrappers_that_means_nothing_is_refused() -> None:
    nest = ErrorFeedback(MomentumCorrection(Uniform(4)))
    with pytest.raises(UserError, match="^wrap: error_feedback around momentum_correction"):
        fit_together(nest, Fixed(), "layer", False)
    fit_together(MomentumCorrection(ErrorFeedback(Uniform(4))), Fixed(), "layer", True)


def test_the_norm_of_the_whole_gradient_is_not_to_be_had_bucket_by_bucket() -> None:
    with pytest.raises(UserError, match=r"^wrap: clip_local .* exchange.overlap=true"):
        fit_together(ClipLocal(Uniform(4)), Fixed(), "layer", True)
    fit_together(ClipLocal(Uniform(4)), Fixed(), "layer", False)


class Unfinished(Selecting):
    def select(self, tensor: torch.Tensor, context: Context) -> Selection:
        raise NotImplementedError


def test_a_compressor_without_what_its_step_needs_is_refused() -> None:
    for nest in (Unfinished(), ErrorFeedback(Unfinished())):
        with pytest.raises(UserError, match="^compressor: Unfinished has no attribute ragged"):
            fit_together(nest, Fixed(), "layer", False)
    with pytest.raises(UserError, match="^compressor: Fixed is no Compressor; derive it"):
        fit_together(Fixed(), Fixed(), "layer", False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="^compressor: Older has an exchange .*; write a step in"):
        fit_together(ErrorFeedback(Older()), Fixed(), "layer", False)


class Older(Dense):
    """Of a version before December 2026."""

    def exchange(self) -> None:
        """Yields requests."""


@pytest.mark.parametrize(
    "method", [TopK(0.1), PowerSGD(1), OneBit(), EFSignSGD(), SparseLoCo(), DeMo()], ids=str
)
def test_a_method_that_loses_what_it_does_not_send_is_noted_once(method: Compressor) -> None:
    _warn_lost.cache_clear()
    name = type(method).__name__
    with pytest.warns(
        UserWarning, match=rf"{name} has no error .*; use ErrorFeedback\({name}\(\.\.\.\)\)$"
    ):
        note_lost(PerLayer(method))
    note_lost(method)  # warnings are errors
    _warn_lost.cache_clear()
    for quiet in (LoCo(method), MomentumCorrection(ErrorFeedback(method))):
        note_lost(quiet)
    for lossy in (MomentumCorrection(method), Ladder((ErrorFeedback(Uniform(8)), method))):
        with pytest.warns(UserWarning, match=name):
            note_lost(lossy)
        _warn_lost.cache_clear()


def test_a_method_that_its_paper_uses_without_error_feedback_is_not_noted() -> None:
    _warn_lost.cache_clear()
    for method in (RandomK(0.1, unbiased=True), SignSGD(), Uniform(4), QSGD(7), Dense()):
        note_lost(method)


def test_simulated_workers_whose_states_do_not_fit_are_refused_with_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dgc_repro.launch.environment.available_bytes", lambda: 24_000_000_000)
    vgg = {"weight": torch.empty(138_365_992, device="meta")}
    with pytest.raises(UserError, match=r"launch.workers: 32 simulated workers need 40.7 GB"):
        check_memory(ErrorFeedback(Uniform(8)), vgg, 32)
    check_memory(Uniform(8), vgg, 32)
