"""How strongly to compress, and when that changes. One policy a file.

`interface.py` says what a policy is: it plans the rung of the next step from numbers that are the same on
every rank, so that all ranks plan the same without communication.
"""
