"""The tables of `make bench`: methods alone, exchanges between ranks, GPU kernels, and networks.

A module measures one table and returns rows; `tables.py` writes them, `launches.py` counts on a pretended
GPU. Columns are compared within one run alone, because machines are shared and noisy.
"""
