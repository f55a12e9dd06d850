"""What an interface has counted: the bytes that the ledger's are checked against."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Self

# sysfs shows the interfaces of the namespace it was mounted in, not the reader's own.
OF_THIS_PROCESS = "/proc/self/net/dev"


@dataclass(frozen=True)
class Counters:
    """Sums since the interface was made, link layer included: 14 bytes of Ethernet, IP, TCP. A packet
    that the kernel hands over whole for later cutting (segmentation offload) counts one header."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __sub__(self, earlier: Self) -> Counters:
        return Counters(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))


def read(interface: str, path: str = OF_THIS_PROCESS) -> Counters:
    """An interface of this process's own namespace. Raises ValueError where there is none."""
    return parse(interface, Path(path).read_text(encoding="ascii"))


def parse(interface: str, text: str) -> Counters:
    """An interface's line of ``/proc/net/dev``. Raises ValueError where there is none."""
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = [int(number) for number in numbers.split()]
            return Counters(
                tx_bytes=fields[8], rx_bytes=fields[0], tx_packets=fields[9], rx_packets=fields[1]
            )
    raise ValueError(f"interface: no {interface!r} in this network namespace")
