"""Readers of weight files and the cache of converted copies."""
