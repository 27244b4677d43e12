"""The CPU path: vector kernels compiled by Numba, run by a team of threads that never enters Python within a step."""
