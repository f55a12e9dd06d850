"""Data sets held in memory as uint8, and the deterministic batches drawn from them."""
