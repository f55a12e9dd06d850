"""Reads the .wandb file of an offline run back, as `wandb sync` would.

The format is LevelDB's log: after a header of 7 bytes, blocks of 32 KiB hold chunks of
crc32 u32, length u16, kind u8 (1 whole, 2 first, 3 middle, 4 last) and that many bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

HEADER = 7
BLOCK = 32768


def chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and content of every chunk."""
    assert data[:4] == b":W&B"
    at = HEADER
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:  # a block's end too short for a chunk is padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        yield kind, data[at + HEADER : at + HEADER + length]
        at += HEADER + length


def records(path: Path) -> list[Any]:
    """Every record of the file, in order."""
    found, parts = [], b""
    for kind, content in chunks(path.read_bytes()):
        parts = content if kind in (1, 2) else parts + content
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            found.append(record)
    return found


def items(updates: Any) -> dict[str, Any]:
    """The keys and values of wandb's update lists; a nested key is joined by dots."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in updates}
