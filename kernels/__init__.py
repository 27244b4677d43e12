"""Attention and cache kernels: know tensors, know nothing of requests."""
