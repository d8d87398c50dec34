"""A toy format in a package of its own, as a format inside cordwood would have it.

<checkpoint>/toy.json       the structure, the leaves and the strings of a tree
<checkpoint>/elements.bin   the elements of its arrays, one after another
"""
