"""Tests of bulk work: tasks, executors, parts and journals."""
