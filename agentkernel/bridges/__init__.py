"""Bridges: the outside world, each knowing the kernel only as a user does."""
