"""The network of a run, as costs of its links."""

from __future__ import annotations

import pytest

from dgc_repro.errors import UserError
from dgc_repro.launch.networks import Modelled
from dgc_repro.launch.own_keys import composed

FOUR = ("launch.workers=4", "launch.workers_per_node=2", "network.efficiency=1.0")


def test_unequal_links_of_a_two_level_run() -> None:
    config = composed([*FOUR, "network.rates=[1gbit,100mbit,500mbit,1gbit]"])
    modelled = Modelled(config, lambda: 0)
    links = (modelled.between_all(), modelled.between_nodes(), modelled.inside_node())
    found = [link("allgather", 1_000_000) for link in links if link is not None]
    assert found == pytest.approx([3 * 8e6 / 1e8, 8e6 / 5e8, 8e6 / 1e8])


def test_too_few_rates_name_the_networks_key() -> None:
    with pytest.raises(UserError, match=r"^network.rates: one for each worker, got 2 for 4"):
        Modelled(composed([*FOUR, "network.rates=[1gbit,1gbit]"]), lambda: 0)
