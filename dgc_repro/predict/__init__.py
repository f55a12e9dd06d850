"""``predict`` and ``calibrate``: what a training step will take on a network."""
