"""Publish and follow: versions of weights that a trainer writes, and that other programs hold."""
