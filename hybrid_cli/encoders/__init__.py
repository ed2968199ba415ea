"""Encoders: texts to vectors, under a contract that determines the vector of each text."""
