"""OCDBT, TensorStore's database of keys and values: its files, read only.

The format: https://google.github.io/tensorstore/kvstore/ocdbt/index.html
"""
