"""Compression methods, one a file, and the wrappers around them, such as error feedback.

`interface.py` says what a method is: ``setup`` once, and ``step``, a generator over the workers hosted here
that yields where it waits. Arithmetic over all tensors is in kernel/, bytes that travel are in payload/.
"""
