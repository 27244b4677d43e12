"""What a replay found: the figures as data, and how they look on a terminal, on a page and in tables."""
