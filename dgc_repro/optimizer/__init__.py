"""Settings of optimizers, one a file, and those optimizers that torch does not have.

Each is a frozen dataclass whose ``build`` makes the optimizer of a module. SAM and rounded weights wrap SGD.
"""
