"""The settings table that every law runs over, one file a family of methods.

A new compressor inherits the whole suite by adding a line to its family's `SETTINGS`, and by
registering what it asks for (`base.asks`).
"""

from dgc_repro.selfcheck.law_settings import (
    aggregation,
    low_rank,
    quantizers,
    sparse,
    uniform,
    wrappers,
)
from dgc_repro.selfcheck.law_settings.base import Setting

SETTINGS: tuple[Setting, ...] = (
    *uniform.SETTINGS,
    *quantizers.SETTINGS,
    *sparse.SETTINGS,
    *low_rank.SETTINGS,
    *wrappers.SETTINGS,
    *aggregation.SETTINGS,
)
