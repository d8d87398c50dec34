"""Conversion between host arrays and jax.Arrays, and snapshots of device arrays."""
