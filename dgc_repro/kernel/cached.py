"""Caches of functions whose results hold tensors of a device, so that all can be emptied at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Any, TypeVar

T = TypeVar("T")
_caches: list[_lru_cache_wrapper[Any]] = []


def cached(maxsize: int) -> Callable[[Callable[..., T]], _lru_cache_wrapper[T]]:
    """`functools.lru_cache` for a function whose results hold tensors."""

    def decorate(function: Callable[..., T]) -> _lru_cache_wrapper[T]:
        _caches.append(cache := lru_cache(maxsize)(function))
        return cache

    return decorate


def forget() -> None:
    """Empty these caches. What they held is made again when it is asked for: after a step on pretended
    tensors, for real ones."""
    for cache in _caches:
        cache.cache_clear()
