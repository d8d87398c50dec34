"""Peers: processes of a job that serve the steps in their roots to each other, read only."""
