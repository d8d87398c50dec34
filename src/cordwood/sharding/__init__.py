"""Shardings of leaves: boxes, grids of boxes, and the processes that hold them. Pure."""
