"""Texts to vectors: the contract of an encoder, and the encoder that keeps it."""
