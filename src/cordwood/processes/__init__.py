"""Coordination of several processes: barriers, rendezvous, processes that fail, preemption."""
