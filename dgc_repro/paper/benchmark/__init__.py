"""This project's own benchmark: all methods on the same workloads."""

from __future__ import annotations

from dgc_repro.paper.claims import Paper

PAPER = Paper("dgc_repro's benchmark of all methods")

MODULES = {"workers": "methods"}
"""Numbers of workers have the page of the methods."""
