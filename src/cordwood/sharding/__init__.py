"""How leaves are spread: boxes, grids of them, and who holds which. Pure."""
