"""The HTTP edge: knows protocols and tenants, knows nothing of blocks."""
