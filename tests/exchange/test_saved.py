"""Checkpoints that all ranks share: torch.distributed.checkpoint, and one file of all ranks' states."""

from __future__ import annotations

import re
from pathlib import Path

import loops
import pytest
from jobs import same
from processes import World

from dgc_repro import ErrorFeedback, Sharded, TopK, Uniform
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.saved import mean_of

FORMS = ("by_rank", "gathered")


@pytest.mark.parametrize("form", FORMS)
def test_another_number_of_workers_gets_the_mean_where_it_asks_for_it(
    two_workers: World, three_workers: World, tmp_path: Path, form: str
) -> None:
    saved = two_workers(loops.saved_by_these, str(tmp_path))
    mean = mean_of([state["exchange"] for state in saved])
    first, second = (state["exchange"]["states"]["residual"] for state in saved)
    assert same(mean["states"]["residual"], {n: (first[n] + second[n]) / 2 for n in first})
    assert not same(first, second)
    for said, state in three_workers(loops.loaded_by_these, str(tmp_path), form, "mean"):
        assert said == "nothing"
        assert same(state["exchange"], mean)
        assert state["world_size"] == 3
        assert state["ledger"] == saved[0]["ledger"]
    for said, state in three_workers(loops.loaded_by_these, str(tmp_path), form, "refuse"):
        assert re.match(
            r"UserError: reshard: the state was saved by 2 .* has 3; use reshard=mean \(each", said
        ), said
        assert state["exchange"]["step"] == 0


@pytest.mark.parametrize(
    ("compressor", "message"),
    [
        (ErrorFeedback(Sharded(Uniform(4))), "reshard: the .* of the shard it owns: that has no"),
        (TopK(0.1), "the saved compressor state is of another model, compressor or"),
    ],
)
def test_what_has_no_mean_or_does_not_fit_is_refused(
    two_workers: World, three_workers: World, tmp_path: Path, compressor: Compressor, message: str
) -> None:
    two_workers(loops.saved_by_these, str(tmp_path))
    where = (str(tmp_path), "gathered", "mean", compressor)
    for said, state in three_workers(loops.loaded_by_these, *where):
        assert re.match(rf"\w+Error: {message}", said), said
        assert state["exchange"]["step"] == 0


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no rank", "it has no rank"),
        ("no residuals", "it has no exchange"),
        ("of a rank, no residuals", "it has no exchange"),
        ("a number", "rank0 holds int"),
        ("no world size", "it has no world_size"),
        ("nothing", "it is NoneType; give what "),
        ("a list", "it is list; give what "),
        ("another policy", "its policy has no "),
        ("another ledger", "it is none that an exchange has saved"),
        ("sums that are none", "it is none that an exchange has saved"),
    ],
)
def test_an_incomplete_state_changes_nothing(two_workers: World, kind: str, message: str) -> None:
    for said in two_workers(loops.damaged, kind):
        assert said.startswith(f"UserError: state: {message}"), said
