"""Caches of layouts: of results that are the same in every step, as many as come again.

The buckets of a model are visited in turn, and `functools.lru_cache` of 64 results finds none of 65 that are
asked for in turn. A cache of thousands would keep layouts of payloads whose sizes differ in every step. So
a result that had to be made a second time is kept apart.
"""

from __future__ import annotations

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
        self._seen: set[int] = set()
        self._kept: dict[Any, T] = {}
        self.made = 0

    def __call__(self, *given: Any) -> T:
        if (known := self._kept.get(given)) is not None:
            return known
        result = self._function(*given)
        self.made += 1
        if len(self._seen) >= MOST_SEEN or len(self._kept) >= MOST_KEPT:
            self.clear()
        if hash(given) in self._seen:
            self._kept[given] = result
        self._seen.add(hash(given))
        return result

    def clear(self) -> None:
        self._seen.clear()
        self._kept.clear()


_makers: dict[_lru_cache_wrapper[Any], _Maker[Any]] = {}


def cached(most: int = 64) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """Decorate a function of positional arguments, whose results depend on nothing else. The ``most`` latest
    results are kept, and all that were made twice."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        maker = _Maker(function)
        cache = lru_cache(most)(maker)
        _makers[cache] = maker
        return cache

    return decorate


def made() -> int:
    """How many results were made for these caches in this process."""
    return sum(maker.made for maker in _makers.values())


def forget(*caches: _lru_cache_wrapper[Any]) -> None:
    """Empty these caches, without an argument all. What they held is made again when it is asked for: after a
    step on pretended tensors, for real ones."""
    for cache in caches or tuple(_makers):
        cache.cache_clear()
        _makers[cache].clear()
