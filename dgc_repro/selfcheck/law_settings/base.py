"""What a line of the settings table is, and how a leaf says which bytes it asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dgc_repro.compressor.interface import Compressor
from dgc_repro.policy.interface import Plan

EPS = 2.0**-24  # largest relative error of one float32 operation
SMALLEST = 2.0**-149  # float32's smallest step
FED_BACK = {"contraction": "what is sent is the compressed sum of gradient and residual"}


@dataclass(frozen=True)
class Setting:
    """One line of the table. ``excuses``: law -> why this method need not obey it. ``eps``,
    ``smallest``: of the arithmetic that the mean is made in, float32's unless it is narrower.
    ``cancelled``: of methods that add products up, error of the mean relative to its tensor's largest
    value."""

    name: str
    compressor: Compressor
    plan: Plan = field(default_factory=lambda: Plan(0))
    choose: Callable[[Tensor], int] | None = None
    excuses: Mapping[str, str] = field(default_factory=dict)
    eps: float = EPS
    smallest: float = SMALLEST
    cancelled: float = 0.0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Asked:
    """One request: ``kind`` is mean, max, agree, gather, ragged, alltoall or alltoall_ragged;
    ``parts``: the number of elements and the bytes of one, part by part, by the formula of the
    method's docstring. ``to``: of an all-to-all, the rank each part goes to."""

    kind: str
    parts: tuple[tuple[int, int], ...]
    to: tuple[int, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(count * size for count, size in self.parts)


InWorld = Callable[[str, int, int], tuple[Asked, ...]]
"""What a leaf asks where that depends on the tensor's name, the worker, and how many there are."""


@functools.singledispatch
def asks(leaf: object, tensor: Tensor, floats: float) -> tuple[Asked, ...] | InWorld:
    """What a leaf asks for a tensor like this one, one request a round. ``floats``: the
    ``num_floats`` of what it sent, for methods whose size depends on the values. Written down
    independently of the method: register yours beside its settings (``@asks.register``)."""
    raise TypeError(f"register with law_settings.base.asks what {leaf} asks for")
