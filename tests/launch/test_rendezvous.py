"""A failed rendezvous gives one line that names the missing ranks or the port, and the config key."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from commands import wait_for
from sockets import listening, open_to_others

from dgc_repro.errors import UserError
from dgc_repro.launch.rendezvous import Rendezvous, hosted_store, ranks, use_loopback


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


def test_a_hosted_store_listens_at_its_own_address_alone(free: int) -> None:
    with socket.create_server(("", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        assert {p for _, p in open_to_others([os.getpid()])} >= {port}, "this test sees sockets"
    before = listening([os.getpid()])
    for asked in (0, free):
        store = hosted_store("127.0.0.1", asked)
        assert listening([os.getpid()]) - before == {("127.0.0.1", store.port)}
        assert store.port == asked or asked == 0
        store.set("key", "value")
        assert store.clone().get("key") == b"value"
        del store
        wait_for(lambda: listening([os.getpid()]) == before, "the store's end")


def test_rank_0_hosts_at_the_address_of_the_ranks(by_hand: Callable[..., None], free: int) -> None:
    before = listening([os.getpid()])
    by_hand(0, 2, free)
    first = Rendezvous(1.0)
    assert listening([os.getpid()]) - before == {("127.0.0.1", free)}
    by_hand(1, 2, free)
    Rendezvous(1.0).send_instructions("train")
    assert first.receive_instructions() == "train"


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("192.0.2.1", r"MASTER_ADDR: 192.0.2.1 \(192.0.2.1\) is no address of rank 0's machine"),
        ("nowhere.invalid", "MASTER_ADDR: rank 0 finds no address of nowhere.invalid"),
    ],
)
def test_an_address_that_rank_0_does_not_have(
    by_hand: Callable[..., None], free: int, monkeypatch: pytest.MonkeyPatch, host: str, says: str
) -> None:
    by_hand(0, 2, free)
    monkeypatch.setenv("MASTER_ADDR", host)
    with pytest.raises(UserError, match=f"^{says}"):
        Rendezvous(1.0)


def test_gloo_and_nccl_use_loopback_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for name in names:
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    use_loopback()
    assert [os.environ[name] for name in names] == ["lo", "lo"]
    monkeypatch.setenv(names[0], "eth1")
    monkeypatch.delenv(names[1])
    use_loopback()
    assert os.environ[names[0]] == "eth1"
    assert names[1] not in os.environ
