"""Removal of all that lies at a path: exactly what was listed, also if it is killed."""
