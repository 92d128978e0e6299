"""Puts a small model, word for word, into a larger shape."""
