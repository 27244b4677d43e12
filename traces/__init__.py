"""Request traces: one schema, readers, writers, generators, recordings."""
