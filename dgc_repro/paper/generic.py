"""The names by which papers from outside import what they need (docs/adding-a-paper.md)."""

from dgc_repro.paper.artifact import ACCURACY, LESS, PERPLEXITY, Artifact

__all__ = ["ACCURACY", "LESS", "PERPLEXITY", "generic_page"]
generic_page = Artifact
