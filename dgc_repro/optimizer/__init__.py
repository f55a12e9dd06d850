"""Settings of optimizers, and those that torch does not have: LARS, LAMB and SAM."""
