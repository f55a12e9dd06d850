"""What methods that choose by a threshold share."""

from __future__ import annotations

from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import native
from dgc_repro.kernel.select import Selection


def check_sample(sample: float) -> None:
    """Raises ValueError unless it is a share of the entries."""
    if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 < sample <= 1:
        raise ValueError(
            f"sample: the share of entries to look at, above 0 and at most 1, got {sample!r}; "
            "0.01 looks at 1 %"
        )


def mark_finite(chosen: Selection, tensor: Tensor, context: Context) -> Selection:
    """Mark the tensor as finite if the selection is, and return the selection. It must hold the tensor's
    largest entries: a NaN or an infinity would be one of them."""
    if native.usable(tensor) and native.all_finite(chosen.values):
        context.found_finite(tensor)
    return chosen
