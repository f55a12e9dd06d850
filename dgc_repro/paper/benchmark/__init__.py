"""This project's own benchmark: all methods on the same workloads.

``methods``, ``steps``, ``recipes`` and ``lossless`` are its pages. The other files have what these pages, the
command ``compare`` and the findings judge settings with, and their figures.
"""

from __future__ import annotations

from dgc_repro.paper.claims import Paper

PAPER = Paper("dgc_repro's benchmark of all methods")

ALIKE = ("scale.name", "train.on_nonfinite")
"""Settings that all runs of a page share."""
MODULES = {"workers": "methods"}
"""Numbers of workers have the page of the methods."""
