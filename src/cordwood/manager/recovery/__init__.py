"""Managers whose processes have roots of their own: what is restored from whom, and replicas."""
