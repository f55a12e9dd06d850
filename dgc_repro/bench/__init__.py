"""Benchmarks: the speed tables, exchanges replayed on shaped links, the network model against them."""
