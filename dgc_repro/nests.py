"""Nested dicts and lists of tensors and numbers: states as they are saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def map_tensors(nest: Any, function: Callable[[Tensor], Any]) -> Any:
    """The same nest with ``function`` applied to every tensor."""
    if isinstance(nest, Tensor):
        return function(nest)
    if isinstance(nest, Mapping):
        return {key: map_tensors(value, function) for key, value in nest.items()}
    if isinstance(nest, Sequence) and not isinstance(nest, str):
        return [map_tensors(value, function) for value in nest]
    return nest


def tensors_of(nest: object) -> list[Tensor]:
    """All tensors in a nest, in order."""
    found: list[Tensor] = []
    map_tensors(nest, found.append)
    return found


def structure(nest: object) -> object:
    """The nest with shapes in place of tensors and types in place of numbers, which may change."""
    if isinstance(nest, Tensor):
        return tuple(nest.shape)
    if isinstance(nest, Mapping):
        return {key: structure(value) for key, value in nest.items()}
    if isinstance(nest, Sequence) and not isinstance(nest, str):
        return [structure(value) for value in nest]
    return type(nest).__name__


def mean_of(nests: Sequence[Any]) -> Any:
    """The nest whose tensors are the means of those of all nests of one structure. Its whole numbers, counts
    of steps, are the largest."""
    first = nests[0]
    if isinstance(first, Tensor):
        every = torch.stack(list(nests))
        return every.mean(0) if every.is_floating_point() else every.amax(0)
    if isinstance(first, dict):
        return {key: mean_of([nest[key] for nest in nests]) for key in first}
    if isinstance(first, list | tuple):
        return [mean_of(list(same)) for same in zip(*nests, strict=True)]
    return max(nests) if isinstance(first, int) else first
