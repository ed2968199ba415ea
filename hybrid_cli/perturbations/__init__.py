"""Attacks on queries, one function each, and the WordNet that some of them draw from."""
