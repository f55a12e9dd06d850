"""Write the chosen entries of all tensors of a batch into a payload, and add payloads up (c/sparse.c).

Tables of a payload, one row each (i64): values of each tensor, entries, where header, places and values
begin in the buffer, words of the places, header, coding (kernel/sparse.py says how places are coded). What
arrives is not checked against its headers: nothing is written outside a tensor, but a broken payload is not
reported."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.gpu import dense
from dgc_repro.kernel.gpu.launch import (
    Each,
    Numbers,
    fixed,
    floats,
    kernel,
    launch,
    listing,
    scan,
    tile,
    tiles,
)

ENTRIES = 2048  # a tile of an encoder
WORDS = 256  # a tile of a decoder
FEW = tl.constexpr(64)  # words of a bitmap at a time
DELTA16, BITMAP = 2, 3
ESCAPE = tl.constexpr(65535)

Table = npt.NDArray[np.int64]  # [8, tensors]


def encode(
    table: Table, shared: bool, values: Tensor, indices: Tensor, starts: Table, buffer: Tensor
) -> None:
    """Write headers, places and values. values: f32; indices: i32 or i64; of tensor s from starts[s]."""
    num = table.shape[1]
    k, words = _row(table, 1), _row(table, 5)
    tile_words = tuple([max(1, count) for count in tiles(words, ENTRIES)])
    launch(
        buffer, _begin, tile_words, table, num, [buffer], values, tuple(starts.tolist()), SHARED=shared,
        TILE=ENTRIES,
    )  # fmt: skip
    counts = tiles(k, ENTRIES)
    escapes = torch.zeros(1, sum(counts), dtype=torch.int32, device=buffer.device)
    given = table, num, indices, tuple(starts.tolist()), escapes
    if DELTA16 in table[7] or listing(buffer):
        launch(buffer, _escapes, counts, *given, TILE=ENTRIES)
        scan(escapes, counts)
    launch(buffer, _write, counts, *given, values, [buffer], SHARED=shared, TILE=ENTRIES)


def add_up(
    x: Batch,
    sources: Sequence[tuple[Table, Tensor]],
    shared: bool,
    weight: float,
    *,
    accumulate: bool,
) -> None:
    """x = or += weight * every payload (its table and its buffer), in their order."""
    if not accumulate:
        dense.zero(x)
    _visit(x.tensors[0], sources, shared, x, weight, zero=False)


def zero_at(x: Batch, table: Table, buffer: Tensor) -> None:
    """x = 0 where the payload has entries."""
    _visit(x.tensors[0], [(table, buffer)], False, x, zero=True)


def decode(
    table: Table, shared: bool, buffer: Tensor, values: Tensor, indices: Tensor, starts: Table
) -> None:
    """Write values and places of the entries, as `encode` takes them. Entries that a broken payload lacks are
    zeros."""
    values.zero_()
    indices.zero_()
    to = values, indices, tuple(starts.tolist())
    _visit(values, [(table, buffer)], shared, None, 1.0, *to, zero=False)


def _visit(
    on: Tensor, sources: Sequence[tuple[Table, Tensor]], shared: bool, x: Batch | None, weight: float = 0.0,
    values: Tensor | None = None, indices: Tensor | None = None, starts: Numbers | None = None,
    *, zero: bool,
) -> None:  # fmt: skip
    """Go to all entries, a launch for each payload: places of one payload are different ones. Without x
    ``values``, ``indices`` and ``starts`` say where the entries are listed."""
    visit = _visit_of(tuple([table for table, _ in sources]))
    num = sources[0][0].shape[1]
    before = torch.empty(2, visit.total, dtype=torch.int64, device=on.device)
    if listing(on) or visit.is_coded:
        buffers = Each([buffer for _, buffer in sources], num)
        launch(
            on, _passed, visit.every, visit.joined, num * len(sources), buffers, before, visit.total,
            WORDS_EACH=WORDS,
        )  # fmt: skip
        scan(before, visit.every)
    each = zip(sources, visit.counts, visit.starts, strict=True)
    for source, ((_, buffer), of_one, start) in enumerate(each):
        launch(
            on, _put, of_one, visit.joined, num * len(sources), num * source, x, [buffer], before, start,
            visit.total, weight, values, indices, starts, SHARED=shared, ZERO=zero, WORDS_EACH=WORDS,
        )  # fmt: skip


class _Visit:
    """The tiles of some payloads: ``counts`` by payload and tensor, ``every`` one after another; ``starts``:
    where those of each payload begin; ``joined``: the tables side by side; ``is_coded``: whether the words of
    some places depend on those before them."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.counts = [tiles(_row(table, 5), WORDS) for table in tables]
        self.every = tuple([count for of_one in self.counts for count in of_one])
        *self.starts, self.total = accumulate([sum(of_one) for of_one in self.counts], initial=0)
        self.joined = fixed(np.concatenate(tables, 1))
        self.is_coded = bool(np.isin(self.joined[7], (DELTA16, BITMAP)).any())


_VISITS: dict[tuple[int, ...], _Visit] = {}  # by the ids of tables, which are `fixed` and kept


def _visit_of(tables: Sequence[Table]) -> _Visit:
    key = tuple(map(id, tables))
    found = _VISITS.get(key)
    if found is None:
        if len(_VISITS) >= 64:
            _VISITS.clear()
        found = _VISITS[key] = _Visit(tables)
    return found


def _row(table: Table, number: int) -> Numbers:
    return tuple(table[number].tolist())


@kernel
def _begin(
    owner, first, table, num, buffers, values, starts, SHARED: tl.constexpr, TILE: tl.constexpr
):
    """Write headers, and clear the places: no bits in a bitmap, escapes elsewhere."""
    s, t = tile(owner, first)
    buffer = tl.load(buffers)
    if t == 0:
        header = (buffer + tl.load(table + 2 * num + s)).to(tl.pointer_type(tl.int64))
        tl.store(header, tl.load(table + 6 * num + s))
        if SHARED:
            shared = (buffer + tl.load(table + 4 * num + s)).to(tl.pointer_type(tl.float32))
            k = tl.load(table + num + s)
            tl.store(shared, tl.load(values + tl.load(starts + s), mask=k > 0, other=0.0))
    coding = tl.load(table + 7 * num + s)
    words = (buffer + tl.load(table + 3 * num + s)).to(tl.pointer_type(tl.int32))
    i = t * TILE + tl.arange(0, TILE)
    there = (i < tl.load(table + 5 * num + s)) & (i * 0 + coding >= 2)
    tl.store(words + i, tl.zeros((TILE,), tl.int32) - tl.where(coding == 2, 1, 0), mask=there)


@jit
def _entries(table, num, s, t, indices, starts, TILE: tl.constexpr):
    """Entries of a tile, their places (i64), and the escapes in front of each."""
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(table + num + s)
    at = indices + tl.load(starts + s) + i
    place = tl.load(at, mask=there, other=0).to(tl.int64)
    last = tl.load(at - 1, mask=there & (i > 0), other=-1).to(tl.int64)
    escapes = tl.where(there, (place - last - 1) // ESCAPE, 0).to(tl.int32)
    return i, there, place, last, escapes


@kernel
def _escapes(owner, first, table, num, indices, starts, found, TILE: tl.constexpr):
    s, t = tile(owner, first)
    _, _, _, _, escapes = _entries(table, num, s, t, indices, starts, TILE)
    tl.store(found + tl.program_id(0), tl.sum(escapes, 0))


@kernel
def _write(
    owner, first, table, num, indices, starts, escapes_before, values, buffers,
    SHARED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    buffer, coding = tl.load(buffers), tl.load(table + 7 * num + s)
    i, there, place, last, escapes = _entries(table, num, s, t, indices, starts, TILE)
    words = buffer + tl.load(table + 3 * num + s)
    narrow = words.to(tl.pointer_type(tl.int32))
    if coding == 0:
        tl.store(narrow + i, place.to(tl.int32), mask=there)
    elif coding == 1:
        tl.store(words.to(tl.pointer_type(tl.int64)) + i, place, mask=there)
    elif coding == 2:
        at = i + tl.load(escapes_before + tl.program_id(0)) + tl.cumsum(escapes, 0)
        gap = place - last - 1 - escapes.to(tl.int64) * ESCAPE
        tl.store(words.to(tl.pointer_type(tl.uint16)) + at, gap.to(tl.uint16), mask=there)
    else:
        bit = (tl.zeros((TILE,), tl.int32) + 1) << (place & 31).to(tl.int32)
        tl.atomic_or(narrow + place // 32, bit, mask=there, sem="relaxed")
    if not SHARED:
        value = tl.load(values + tl.load(starts + s) + i, mask=there, other=0.0)
        to = (buffer + tl.load(table + 4 * num + s)).to(tl.pointer_type(tl.float32))
        tl.store(to + i, value, mask=there)


@jit
def _values(sent, entry, there, SHARED: tl.constexpr):
    """The values of these entries."""
    if SHARED:
        entry = entry * 0
    return tl.load(sent + entry, mask=there, other=0.0)


@jit
def _set_bits(word):
    """How many bits of each word are set. u32."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@jit
def _codes(words, num_words, t, WORDS_EACH: tl.constexpr):
    """Of DELTA16: how far each code goes on, and whether an entry stands there."""
    i = t * (2 * WORDS_EACH) + tl.arange(0, 2 * WORDS_EACH)
    there = i < 2 * num_words
    code = tl.load(words.to(tl.pointer_type(tl.uint16)) + i, mask=there, other=65535).to(tl.int32)
    entry = (code != ESCAPE).to(tl.int32)
    return tl.where(there, code + entry, 0), entry


@jit
def _bitmap(words, num_words, t, WORDS_EACH: tl.constexpr):
    i = t * WORDS_EACH + tl.arange(0, WORDS_EACH)
    return tl.load(words.to(tl.pointer_type(tl.uint32)) + i, mask=i < num_words, other=0)


@kernel
def _passed(owner, first, table, num, buffers, before, num_tiles, WORDS_EACH: tl.constexpr):
    """How far each tile of words goes on, and how many entries it has."""
    s, t = tile(owner, first)
    words = tl.load(buffers + s) + tl.load(table + 3 * num + s)
    num_words, coding = tl.load(table + 5 * num + s), tl.load(table + 7 * num + s)
    passed, entries = coding * 0, coding * 0
    if coding == 2:
        steps, found = _codes(words, num_words, t, WORDS_EACH)
        passed = tl.sum(steps, 0).to(tl.int64)
        entries = tl.sum(found, 0).to(tl.int64)
    elif coding == 3:
        entries = tl.sum(_set_bits(_bitmap(words, num_words, t, WORDS_EACH)), 0).to(tl.int64)
    tl.store(before + tl.program_id(0), passed)
    tl.store(before + num_tiles + tl.program_id(0), entries)


@kernel
def _put(
    owner, first, table, num, column, x, buffers, before, start, num_tiles, weight, values, indices, starts,
    SHARED: tl.constexpr, ZERO: tl.constexpr, WORDS_EACH: tl.constexpr,
):  # fmt: skip
    """x[place] += weight * value, or = 0, for the entries of a tile of words; or list places and values.
    ``column``: of the first tensor of this payload in the table."""
    s, t = tile(owner, first)
    table += column
    words = tl.load(buffers) + tl.load(table + 3 * num + s)
    num_words, coding = tl.load(table + 5 * num + s), tl.load(table + 7 * num + s)
    here = before + start + tl.program_id(0)
    passed, earlier = tl.load(here), tl.load(here + num_tiles)
    if coding == 2:
        steps, found = _codes(words, num_words, t, WORDS_EACH)
        place, entry = passed + tl.cumsum(steps, 0) - 1, earlier + tl.cumsum(found, 0) - 1
        _put_at(
            table, num, s, x, buffers, place, entry, found > 0, weight, values, indices, starts, SHARED, ZERO
        )  # fmt: skip
    elif coding == 3:
        _put_bits(
            table, num, s, t, x, buffers, words, num_words, earlier, weight, values, indices, starts, SHARED,
            ZERO, WORDS_EACH,
        )  # fmt: skip
    else:
        _put_plain(
            table, num, s, t, x, buffers, words, coding, weight, values, indices, starts, SHARED, ZERO,
            WORDS_EACH,
        )  # fmt: skip


@jit
def _put_bits(
    table, num, s, t, x, buffers, words, num_words, earlier, weight, values, indices, starts,
    SHARED: tl.constexpr, ZERO: tl.constexpr, WORDS_EACH: tl.constexpr,
):  # fmt: skip
    """So many words at a time that the 32 entries of each fit into registers."""
    bit = tl.arange(0, 32).to(tl.uint32)[None, :]
    for within in range(WORDS_EACH // FEW):
        part = t * (WORDS_EACH // FEW) + within
        word = _bitmap(words, num_words, part, FEW)
        counts = _set_bits(word)
        below = word[:, None] & (((bit * 0 + 1) << bit) - 1)
        entry = (earlier + tl.cumsum(counts, 0) - counts)[:, None] + _set_bits(below)
        place = (part * FEW + tl.arange(0, FEW))[:, None] * 32 + tl.arange(0, 32)[None, :]
        found = ((word[:, None] >> bit) & 1) != 0
        _put_at(
            table, num, s, x, buffers, place, entry, found, weight, values, indices, starts, SHARED, ZERO
        )  # fmt: skip
        earlier += tl.sum(counts, 0)


@jit
def _put_plain(
    table, num, s, t, x, buffers, words, coding, weight, values, indices, starts, SHARED: tl.constexpr,
    ZERO: tl.constexpr, WORDS_EACH: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WORDS_EACH)
    size = tl.where(coding == 1, WORDS_EACH // 2, WORDS_EACH)  # entries of a tile
    entry = t * size + at
    found = (at < size) & (entry < tl.load(table + num + s))
    wide = at * 0 + coding == 1
    place = tl.load(words.to(tl.pointer_type(tl.int32)) + entry, mask=found & ~wide, other=0)
    large = tl.load(words.to(tl.pointer_type(tl.int64)) + entry, mask=found & wide, other=0)
    place = place.to(tl.int64) + large
    _put_at(
        table,
        num,
        s,
        x,
        buffers,
        place,
        entry,
        found,
        weight,
        values,
        indices,
        starts,
        SHARED,
        ZERO,
    )


@jit
def _put_at(
    table, num, s, x, buffers, place, entry, found, weight, values, indices, starts, SHARED: tl.constexpr,
    ZERO: tl.constexpr,
):  # fmt: skip
    buffer = tl.load(buffers)
    sent = (buffer + tl.load(table + 4 * num + s)).to(tl.pointer_type(tl.float32))
    found = found & (place >= 0) & (place < tl.load(table + s))
    found = found & (entry < tl.load(table + num + s))
    if x is None:
        at = tl.load(starts + s) + entry
        tl.store(values + at, _values(sent, entry, found, SHARED), mask=found)
        tl.store(indices + at, place.to(indices.dtype.element_ty), mask=found)
    else:
        to = floats(x, s) + place
        if ZERO:
            tl.store(to, place.to(tl.float32) * 0.0, mask=found)
        else:
            value = _values(sent, entry, found, SHARED) * weight
            tl.store(to, tl.load(to, mask=found, other=0.0) + value, mask=found)
