"""Where the numbers of a run go: the record (jsonl), the terminal (console), wandb.

Rank 0 passes finished numbers to the sinks; a sink computes nothing. The record is always written, and the
others can be made from it again.
"""
