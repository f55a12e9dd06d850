"""Which methods may be fed back: those that leave less than they are given, on average.

What a step leaves is added to what the next one is given, at the workers (`ErrorFeedback`,
`BlockMomentum`) and at the owners of shards (`Sharded`). A method is a contraction where
E||x - C(x)||^2 < ||x||^2 for every tensor x: what is owed then stays within a multiple of a gradient. One
that is none, and whose residual was measured to grow without bound, has ``expands`` set. A grid that ends at
the largest magnitude (`Uniform`, `QSGD` with the max-norm, `TernGrad`) never has: no value is moved by more
than a step, which bounds a residual from 2 steps on, and with 1 it settles (compressor/qsgd.py).
"""

from __future__ import annotations

from dgc_repro.compressor.interface import nested


def expands(compressor: object) -> bool:
    """Whether a compressor, or one that it is made of, leaves more than it is given."""
    return _expanding(compressor) is not None


def check_residual(compressor: object, field: str, fix: str) -> None:
    """Raise ValueError, beginning with ``field`` and ending with ``fix``, where a residual of this
    compressor would grow without bound."""
    if (part := _expanding(compressor)) is not None:
        raise ValueError(
            f"{field}: what {type(part).__name__} loses, as it is set, is more than it is given: "
            f"its residual would grow without bound; {fix}"
        )


def _expanding(compressor: object) -> object | None:
    return next((part for part in nested(compressor) if getattr(part, "expands", False)), None)
