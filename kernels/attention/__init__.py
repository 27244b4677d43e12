"""Paged attention on Triton: one traversal, many rules. Import the modules; nothing is re-exported."""
