"""safetensors: one file that any safetensors reader reads, with tree, kinds and digests.

docs/format.md is the specification of what cordwood adds.
"""
