"""Decoder model families over a paged KV cache."""
