"""numpy's files, read only: .npy, .npz (a zip archive of .npy), and equinox's .eqx (.npy in a row).

docs/format.md says what is read of them.
"""
