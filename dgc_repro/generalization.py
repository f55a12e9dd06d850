"""The path by which configs name `Measured`: published runs are identified by it. The code is in study/."""

from dgc_repro.study import generalization as measured

__all__ = ["measured"]
