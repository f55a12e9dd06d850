"""Decode tables in parquet that a stranger may have made, within a bound.

The footer of a file claims sizes, and may lie: 33 kB took 2 GB. What a page unpacks to stands in its own
header, which pyarrow shows to nobody. `unpacked_bytes` reads these headers (Thrift's compact protocol).

Formats  parquet.thrift of apache/parquet-format, ``PageHeader``; thrift-compact-protocol.md of apache/thrift
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from dgc_repro.files import MIB

MOST_BYTES, MOST_ROWS = 256 * MIB, 10**7
"""Of a table in memory. The largest published one has 9 MB and 46,269 rows."""
TOO_LARGE = f"more than {MOST_BYTES:,} bytes or {MOST_ROWS:,} rows"
UNPACKED, PACKED = 2, 3  # fields of a page's header
MOST_NESTED = 16  # levels of structures in a header


def decoded(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table in parquet, or some of its columns. Raises ValueError where it has more than
    `MOST_BYTES` or `MOST_ROWS`: a few kilobytes can repeat a value until they fill any memory."""
    file = pq.ParquetFile(pa.BufferReader(content))
    groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
    sizes = [unpacked_bytes(content, group) for group in groups]
    if sum(sizes) > MOST_BYTES or file.metadata.num_rows > MOST_ROWS:
        raise ValueError(TOO_LARGE)
    # No value is larger than its row group, so that this number of rows is a part of the bound.
    rows = max(1, min(2**16, MOST_BYTES // 4 // max([*sizes, 1])))
    parts, size = [], 0
    for part in file.iter_batches(rows, columns=columns, use_threads=False):
        size += part.nbytes
        if size > MOST_BYTES:
            raise ValueError(TOO_LARGE)
        parts.append(part)
    return pa.Table.from_batches(parts) if parts else file.read(columns)


def unpacked_bytes(content: bytes, group: pq.RowGroupMetaData) -> int:
    """Return what the pages of a row group unpack to, by their own headers. Raises ValueError for a page that
    lies outside its column."""
    total = 0
    for number in range(group.num_columns):
        column = group.column(number)
        place = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            place = min(place, column.dictionary_page_offset)
        end = place + column.total_compressed_size
        while place < end:
            header = _Header(content, place)
            sizes = header.integers_of_structure()
            unpacked, packed = sizes.get(UNPACKED, -1), sizes.get(PACKED, -1)
            place = header.place + packed
            if min(unpacked, packed) < 0 or not 0 < place <= end <= len(content):
                raise ValueError("a page lies outside its column")
            total += unpacked
    return total


class _Header:
    """A structure in Thrift's compact protocol, read from a place on."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content = content
        self.place = place

    def integers_of_structure(self, level: int = 0) -> dict[int, int]:
        """The integers of a structure by the number of their field; its other fields are passed over."""
        found: dict[int, int] = {}
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._integer()
            value = self._value(kind, level)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, level: int, *, in_list: bool = False) -> int | None:
        """Read a value of a type: an integer, None for another one."""
        match kind:
            case 1 | 2:  # the type is the value; in a list it has a byte
                self.place += in_list
            case 3:
                self.place += 1
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                self.place += 8
            case 8:
                length = self._varint()  # which moves the place
                self.place += length
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                if count > len(self.content):
                    raise ValueError("a header has a list of impossible length")
                for _ in range(count):
                    self._value(head & 15, level + 1, in_list=True)
            case 12 if level < MOST_NESTED:
                self.integers_of_structure(level + 1)
            case _:
                raise ValueError(f"a header has a value of type {kind}")
        return None

    def _byte(self) -> int:
        if not 0 <= self.place < len(self.content):
            raise ValueError("a header is truncated")
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a header has a number of more than 64 bits")

    def _integer(self) -> int:
        """A number in zigzag: 0, -1, 1, -2, ..."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)
