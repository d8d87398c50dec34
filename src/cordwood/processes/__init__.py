"""Coordination of several processes: barriers, rendezvous, failed and late processes, preemption."""
