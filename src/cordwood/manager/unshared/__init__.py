"""Runs whose processes have a root each: shared=False."""
