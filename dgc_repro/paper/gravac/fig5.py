"""GraVAC's figure 5: gradients of VGG16 before and after compression."""

from __future__ import annotations

from functools import partial

from dgc_repro.paper.gravac import VGG16
from dgc_repro.paper.gravac.fig4_6 import page as page_of

POOL = "training"
page = partial(page_of, VGG16)
