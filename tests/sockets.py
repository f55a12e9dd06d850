"""The TCP sockets on which processes listen, read from /proc."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path

LISTEN = "0A"


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """(address, port) of each listening TCP socket that one of the processes holds."""
    found = set()
    for pid in pids:
        links = []
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                links.append(os.readlink(path))
            except OSError:
                continue  # it has just been closed
        for table, size in (("tcp", 4), ("tcp6", 16)):
            path = Path(f"/proc/{pid}/net/{table}")
            for line in path.read_text().splitlines()[1:] if path.exists() else ():
                place, state, inode = (line.split()[column] for column in (1, 3, 9))
                if state == LISTEN and f"socket:[{inode}]" in links:
                    found.add(_place(place, size))
    return found


def open_to_others(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Those of them that are not on loopback."""
    return {(a, port) for a, port in listening(pids) if not ipaddress.ip_address(a).is_loopback}


def _place(text: str, size: int) -> tuple[str, int]:
    """An address as /proc prints it: 32-bit words of this machine's byte order, in hex."""
    address, _, port = text.partition(":")
    words = [int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, 2 * size, 8)]
    family = socket.AF_INET if size == 4 else socket.AF_INET6
    return socket.inet_ntop(family, b"".join(words)), int(port, 16)
