"""The training loop: one step, the loop around it, evaluation, checkpoints."""
