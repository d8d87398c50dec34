"""The parts of benchmarks/gpu.py: each measures one subject, in a process of its own."""
