"""A failed rendezvous gives one line that names the missing ranks or the port, and the config key."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from dgc_repro.errors import UserError
from dgc_repro.launch.rendezvous import Rendezvous, ranks


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens at, and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("rank", "seconds", "says"),
    [
        (0, 1.0, r"MASTER_PORT: port {taken} is in use.*such as MASTER"),
        (1, 1.0, r"MASTER_PORT: .*:{taken} is no torch rendezvous"),
        (1, 0.3, r"launch.start_timeout_seconds: rank 1 waited 0.3 s for"),
    ],
    ids=["in use", "another program", "nobody"],
)
def test_a_port_without_a_store(
    rank: int, seconds: float, says: str, by_hand: Callable[..., None], taken: int, free: int
) -> None:
    by_hand(rank, 2, taken if "{taken}" in says else free)
    with pytest.raises(UserError, match=f"^{says.format(taken=taken)}"):
        Rendezvous(seconds)


def test_ranks_that_never_start_are_named(by_hand: Callable[..., None], free: int) -> None:
    by_hand(0, 4, free)
    told: list[str] = []

    def come(rank: int, rendezvous: Rendezvous) -> None:
        with pytest.raises(UserError) as raised:
            rendezvous.wait_for_all("start")
        told.append(str(raised.value))

    first = Rendezvous(0.5)
    by_hand(2, 4, free)
    second = Rendezvous(0.5)
    threads = [threading.Thread(target=come, args=pair) for pair in ((0, first), (2, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = "launch.start_timeout_seconds: ranks 1, 3 of 4 did not come (start) within 0.5 s; "
    assert [line[: len(said)] for line in told] == [said] * 2


@pytest.mark.parametrize(
    ("port", "says"),
    [("", "MASTER_PORT: not set"), ("http", "got 'http'"), ("70000", "from 1 to 65535")],
)
def test_a_place_that_is_none(by_hand: Callable[..., None], port: str, says: str) -> None:
    by_hand(0, 2, port)
    with pytest.raises(UserError, match=f"^MASTER_PORT: .*{says}|^{says}"):
        Rendezvous(1.0)


def test_ranks_in_words() -> None:
    assert ranks([3]) == "rank 3"
    assert ranks([1, 3]) == "ranks 1, 3"
    assert ranks(range(100)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..."
