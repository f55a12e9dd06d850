"""The exchange of a step: gradients in, means out, bytes and time counted.

`door.py` has `attach`, the one way into a user's loop; `exchange.py` is the exchange of one step, and
`junction.py` says when gradients enter it. `world.py` is the only place that asks for collectives.
"""
