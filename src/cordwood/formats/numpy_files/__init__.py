"""numpy's files, read only: .npy, .npz (a zip archive of .npy), and equinox's .eqx (.npy in a row).

Each has a module with a `read_index`; docs/format.md says what is read of them.
"""
