"""GraVAC's figure 4: gradients of ResNet101 before and after compression."""

from __future__ import annotations

from functools import partial

from dgc_repro.paper.gravac import RESNET101
from dgc_repro.paper.gravac.fig4_6 import page as page_of

POOL = "training"
page = partial(page_of, RESNET101)
