"""Encoders: texts to vectors, and the contract that decides which vector a text gets."""
