"""Compression methods, one a file: pure tensor mathematics, without communication."""
