"""Common mistakes, and what cordwood, Orbax, Flax and equinox say of them.

`python -m demo.mistakes` makes each with every library and writes docs/mistakes.md.
"""
