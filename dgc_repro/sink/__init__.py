"""Where a run's numbers go: the record (jsonl), the terminal (console), a mirror (wandb).

Rank 0 hands finished numbers to a sink; no sink computes one. The record is always on, and all
others could be rebuilt from it.
"""

from __future__ import annotations
