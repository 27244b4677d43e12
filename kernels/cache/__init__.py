"""Kernels on the paged cache itself: writing, copying, swapping, and the block table. Import the modules; nothing is re-exported."""
