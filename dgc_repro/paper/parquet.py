"""Decode tables in parquet that a stranger may have made, within a bound.

The footer of a file claims sizes, and may lie: 33 kB took 2 GB. The header of each page has its unpacked
size. pyarrow does not give access to these headers, so `pages_of` reads them (Thrift's compact protocol).

Formats  parquet.thrift of apache/parquet-format, ``PageHeader``; thrift-compact-protocol.md of apache/thrift
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dgc_repro.files import MIB, refuse_large

MOST_BYTES = 256 * MIB
"""Of a table in memory, with 8 bytes for each value. The largest published one has 16 MB."""
MOST_PAGES = 10**5
TOO_LARGE = f"more than {MOST_BYTES:,} bytes"
UNPACKED, PACKED, DATA, DICTIONARY, DATA_V2 = 2, 3, 5, 7, 8  # fields of a page's header
ENCODING = {DATA: 2, DATA_V2: 4}
EXPANDING = {5, 6, 7}
"""Encodings by differences, whose values can be far larger than their page. `pool.write` uses none."""
MOST_NESTED, MOST_FIELDS = 3, 32  # of the structures in a header


class Pages(NamedTuple):
    """The pages of a row group.

    unpacked  bytes that all pages unpack to
    row       most bytes that a row takes beyond these: 8 for each number, and for each text that is named by
              its place in a dictionary, the size of the dictionary
    """

    unpacked: int
    row: int


def decoded(content: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table of numbers and texts in parquet, or some of its columns. Raises ValueError for columns
    of other types, and for a table of more than `MOST_BYTES` or `files.MOST_VALUES`: a few kilobytes can
    repeat a value until they fill any memory."""
    file = pq.ParquetFile(pa.BufferReader(content))
    for field in file.schema_arrow:
        if not any(is_type(field.type) for is_type in TYPES):
            raise ValueError(f"column {field.name}: numbers or texts, got {field.type}")
    refuse_large(file.metadata.num_rows, file.metadata.num_columns)
    refuse_large(file.metadata.num_row_groups, file.metadata.num_columns)
    groups = pages_of(content, file.metadata)
    if sum(group.unpacked for group in groups) > MOST_BYTES:
        raise ValueError(TOO_LARGE)
    # So that a part takes at most the unpacked pages and a quarter of the bound.
    rows = max(1, min(2**16, MOST_BYTES // 4 // max([1, *(group.row for group in groups)])))
    parts, size = [], 0
    for part in file.iter_batches(rows, columns=columns, use_threads=False):
        size += part.nbytes + 8 * part.num_rows * part.num_columns
        if size > MOST_BYTES:
            raise ValueError(TOO_LARGE)
        parts.append(part)
    return pa.Table.from_batches(parts) if parts else file.read(columns)


TYPES = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_null),
    *(pa.types.is_string, pa.types.is_large_string),
)
"""Of columns that `pool.write` makes; null where no run has a value."""


def pages_of(content: bytes, metadata: pq.FileMetaData) -> list[Pages]:
    """Read the headers of the pages of each row group. Raises ValueError for a page that lies outside its
    column, for columns that overlap, and for more than `MOST_PAGES`."""
    found, pages, packed = [], 0, 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        total = row = 0
        for column in map(group.column, range(group.num_columns)):
            packed += column.total_compressed_size
            if column.total_compressed_size < 0 or packed > len(content):
                raise ValueError("columns overlap")
            for page in _pages_of_column(content, column):
                pages += 1
                if pages > MOST_PAGES:
                    raise ValueError(f"more than {MOST_PAGES:,} pages")
                total += page[UNPACKED]
                if DICTIONARY in page and column.physical_type == "BYTE_ARRAY":
                    row += page[UNPACKED]
            row += 8
        found.append(Pages(total, row))
    return found


def _pages_of_column(content: bytes, column: pq.ColumnChunkMetaData) -> Iterator[dict[int, Any]]:
    """The headers of a column's pages."""
    place = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        place = min(place, column.dictionary_page_offset)
    end = place + column.total_compressed_size
    while place < end:
        header = _Header(content, place)
        page = header.structure()
        unpacked, packed = page.get(UNPACKED), page.get(PACKED)
        if not isinstance(unpacked, int) or not isinstance(packed, int):
            raise ValueError("a page has no size")
        for kind, encoding in ENCODING.items():
            if isinstance(page.get(kind), dict) and page[kind].get(encoding) in EXPANDING:
                raise ValueError(f"a page has encoding {page[kind][encoding]}")
        place = header.place + packed
        if min(unpacked, packed) < 0 or not 0 < place <= end <= len(content):
            raise ValueError("a page lies outside its column")
        yield page


class _Header:
    """A structure in Thrift's compact protocol, read from a place on."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content = content
        self.place = place

    def structure(self, level: int = 0) -> dict[int, Any]:
        """The fields of a structure by number: integers and structures, None for values of other types."""
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._integer()
            if field in found or not 0 < field <= MOST_FIELDS:
                raise ValueError(f"a header has a field {field}, or has it twice")
            found[field] = self._value(kind, level)
        return found

    def _value(self, kind: int, level: int) -> Any:
        """Read a value of a type. A header has no lists."""
        match kind:
            case 1 | 2:  # the type is the value
                pass
            case 3:
                self.place += 1
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                self.place += 8
            case 8:
                length = self._varint()  # which moves the place
                self.place += length
            case 12 if level < MOST_NESTED:
                return self.structure(level + 1)
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
