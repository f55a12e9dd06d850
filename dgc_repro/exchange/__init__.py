"""How workers talk: the world and its collectives, the exchange of a step, `attach`, bytes and time."""
