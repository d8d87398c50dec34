"""safetensors: one file that any safetensors reader reads, with tree, leaf kinds and digests.

docs/format.md is the specification of what cordwood adds.
"""
