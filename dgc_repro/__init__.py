"""Gradient compression, measured: compressors, policies, and papers' tables made again.

``dgc_repro.attach`` gives a DistributedDataParallel loop of your own a compressor. Importing the
package does not import torch, so that reports can be rebuilt on any laptop.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "attach"]


def __getattr__(name: str) -> Any:
    if name == "attach":
        from dgc_repro.exchange.attached import attach

        return attach
    raise AttributeError(f"module 'dgc_repro' has no attribute {name!r}")
