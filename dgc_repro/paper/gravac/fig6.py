"""GraVAC's figure 6: gradients of the LSTM before and after compression."""

from __future__ import annotations

from functools import partial

from dgc_repro.paper.gravac import LSTM
from dgc_repro.paper.gravac.fig4_6 import page as page_of

POOL = "training"
page = partial(page_of, LSTM)
