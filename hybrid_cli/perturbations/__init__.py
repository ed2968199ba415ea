"""Attacks on queries, and the resources that they read: WordNet, tables of synonyms, translation models."""
