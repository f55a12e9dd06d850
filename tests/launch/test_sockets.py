"""A run on one machine is not open to other machines: no store and no socket of gloo's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from commands import PATIENCE_SECONDS, Command
from ranks import processes_of
from sockets import listening, open_to_others
from test_lost_rank import RUN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_SECONDS)]


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
def test_a_live_run_listens_on_loopback_alone(
    commands: Callable[..., Command], launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "dgc_repro")
    through = torchrun if launcher == "torchrun" else ("dgc_repro",)
    command = commands(*RUN, through=through)
    command.start()
    command.wait_for_step(2)
    ranks = command.ranks()
    assert len(listening(ranks.values())) >= len(ranks), "gloo listens in each rank"
    assert open_to_others(ranks.values()) == set()
    if launcher == "local":  # torchrun's agent hosts a store of its own
        assert listening([command.process.pid]) != set()
        assert open_to_others([command.process.pid, *processes_of(command.runs)]) == set()
    command.process.terminate()
    command.end()
