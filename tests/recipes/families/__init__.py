"""Shipped recipes: their tables, and what other programs make of the same small files.

- data/: one file for each case, written by `make recipes-data` in an environment with torch: the
  names and shapes that transformers writes, and digests of what MaxText, Tunix and EasyDeL make of
  the values of tensors.py.
- cases.py, tensors.py: what the tests read and compute, without torch.
- generate.py, models.py, converters.py: what writes data/.
"""
