"""Bulk work: the tasks of one call, which threads, an executor or several machines run."""
