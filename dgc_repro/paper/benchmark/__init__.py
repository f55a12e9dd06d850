"""This project's own benchmark: all methods on the same workloads."""

from __future__ import annotations

from dgc_repro.paper.claims import Paper

PAPER = Paper("dgc_repro's benchmark of all methods", "benchmark")

MODULES = {"images": "methods", "text": "methods", "workers": "methods"}
"""The artifacts of the second edition have the page of the first."""
