"""How strongly to compress, and when that changes. One policy a file."""
