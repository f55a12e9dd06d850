"""Caches of layouts: results that are the same in every step are kept, however many there are.

The buckets of a model are visited in turn, and `functools.lru_cache` of 64 results finds none of 65 that are
asked for in turn. A cache of thousands would keep layouts of payloads whose sizes differ in every step. So
a result that had to be made a second time is kept apart. Only tables belong here, a few numbers a tensor.
Results with a number for each value of a tensor belong in `few`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")
MOST_KEPT = 4096  # results that were made a second time
MOST_SEEN = 1 << 14  # arguments that are remembered, as hashes, to notice that they come again


class _Maker(Generic[T]):
    """Calls a function where `lru_cache` has no result. ``made``: how often."""

    def __init__(self, function: Callable[..., T]) -> None:
        self._function = function
        # By hash, the arguments that hash by identity: another object may get the address of a freed one.
        self._seen: dict[int, list[weakref.ref[Any]]] = {}
        self._kept: dict[Any, T] = {}
        self.made = 0

    def __call__(self, *given: Any) -> T:
        if (known := self._kept.get(given)) is not None:
            return known
        result = self._function(*given)
        self.made += 1
        if len(self._seen) >= MOST_SEEN or len(self._kept) >= MOST_KEPT:
            self.clear()
        seen = self._seen.get(hash(given))
        if seen is not None and all(found() is not None for found in seen):
            self._kept[given] = result
        self._seen[hash(given)] = [
            weakref.ref(one)
            for one in given
            if one is not None and type(one).__hash__ is object.__hash__  # type: ignore[comparison-overlap]
        ]
        return result

    def clear(self) -> None:
        self._seen.clear()
        self._kept.clear()


_caches: weakref.WeakSet[_lru_cache_wrapper[Any]] = weakref.WeakSet()
"""Those of `cached` and `few` that still exist: an object may have its own."""


def cached(most: int = 64) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Decorate a function of positional arguments, whose results depend on nothing else. The ``most`` latest
    results are kept, and all that were made twice."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        cache = lru_cache(most)(_Maker(function))
        _caches.add(cache)
        return cache

    return decorate


def few(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
    """Decorate a function whose results are as large as tensors: the 8 latest are kept, and no others."""
    cache = lru_cache(8)(function)
    _caches.add(cache)
    return cache


def made() -> int:
    """How many results were made for these caches in this process."""
    makers = [cache.__wrapped__ for cache in _caches]
    return sum(maker.made for maker in makers if isinstance(maker, _Maker))


def forget(*caches: _lru_cache_wrapper[Any]) -> None:
    """Empty these caches, without an argument all. What they held is made again when it is asked for: after a
    step on pretended tensors, for real ones."""
    for cache in caches or tuple(_caches):
        cache.cache_clear()
        if isinstance(maker := cache.__wrapped__, _Maker):
            maker.clear()
