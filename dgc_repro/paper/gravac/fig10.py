"""GraVAC's figure 10: convergence, compression factors and compression throughput, geometric scaling."""

from __future__ import annotations

from functools import partial

from dgc_repro.paper.gravac.fig7_10 import page as page_of

POOL = "training"
page = partial(page_of, 10)
