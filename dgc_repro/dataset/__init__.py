"""Data sets, one a file: held in memory as uint8 or as word numbers, without loader processes.

`images.py` and `text.py` have the frozen dataclasses of which a data set is one, `batches.py` the
deterministic batches, and `download.py` fetches files and checks their SHA-256.
"""
