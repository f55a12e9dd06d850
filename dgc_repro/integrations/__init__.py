"""Compressors in the training loops of frameworks (docs/frameworks.md): a module for each."""
