"""The path by which configs name `Payloads`: a published run is identified by it. The code is in study/."""

from dgc_repro.study import payloads

__all__ = ["payloads"]
