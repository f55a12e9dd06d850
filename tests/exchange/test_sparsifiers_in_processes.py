"""Sparsifiers on real gloo processes: the simulated world's bits, state and bytes."""

from __future__ import annotations

import pytest
from jobs import exchange_here, exchanged
from law_settings import low_rank, sparse
from law_settings.base import Setting
from laws import same
from processes import World

from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.magnitude import Magnitude
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.policy.interface import Plan

SHAPES = {"matrix": (33, 13), "vector": (5,), "one": (1,), "empty": (0,), "large": (40, 130)}
METHODS = (Threshold, DGCSampled, RedSync, SIDCo, Magnitude, RandomK)


def methods_of(setting: Setting) -> set[type]:
    return {type(part) for part in nested(setting.compressor)} & set(METHODS)


UNPLANNED = [
    one for one in (*sparse.SETTINGS, *low_rank.SETTINGS) if one.plan == Plan(0) and methods_of(one)
]


def test_each_method_is_among_the_settings() -> None:
    assert set().union(*map(methods_of, UNPLANNED)) == set(METHODS)


@pytest.mark.parametrize("setting", UNPLANNED, ids=str)
def test_real_processes_give_what_the_simulated_world_gives(
    setting: Setting, two_workers: World
) -> None:
    real = two_workers(exchange_here, setting.compressor, SHAPES, 2, 0)
    simulated = exchanged(SimulatedWire(2), setting.compressor, SHAPES, 2, 0)
    assert real[0]["ledger"] == simulated["ledger"]
    # How many values are one's own is another number on every rank, where it is not set beforehand.
    assert real[0]["ledger"].pop("floats") > 0 < real[1]["ledger"].pop("floats")
    assert real[1]["ledger"] == real[0]["ledger"]
    for rank, told in enumerate(real):
        assert same(told["means"], simulated["means"])
        assert same(told["states"][0], simulated["states"][rank])
