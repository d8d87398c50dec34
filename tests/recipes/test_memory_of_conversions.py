"""Peak memory of a conversion with a recipe: a few blocks, whatever the size of the arrays."""

from __future__ import annotations

from pathlib import Path

from tests.children import run_python

MIB = 1 << 20

# 640 MiB in 20 layers, transposed and stacked along the second axis.
CHILD = """
import json, os, struct, sys
import numpy as np
import cordwood
from cordwood.recipes import Recipe, Rule

os.chdir(sys.argv[1])

def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

PLACES = [(0, 0, 0), (3, 130, 7), (11, 2300, 2049), (19, 4095, 4095)]
names = [f"layers.{i}.w" for i in range(20)]
size = 4096 * 4096 * 2
head = {
    name: {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [i * size, (i + 1) * size]}
    for i, name in enumerate(names)
}
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
with open("layers.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + 20 * size)
    for layer, row, column in PLACES:
        file.seek(8 + len(text) + layer * size + (row * 4096 + column) * 2)
        file.write(struct.pack("<H", row + layer))
recipe = Recipe([Rule("layers.{i}.w", "(n h) d", "w", "d i n h", sizes={"h": 128})])
cordwood.save("small.safetensors", {"w": np.ones(3)})
cordwood.convert("small.safetensors", "small")
before = peak()
cordwood.convert("layers.safetensors", "converted", recipe=recipe)
print(peak() - before)
w = cordwood.load("converted", mmap=True)["w"].view(np.uint16)
for layer, row, column in PLACES:
    assert w[column, layer, row // 128, row % 128] == row + layer
assert np.count_nonzero(w) == 3
"""


def test_a_conversion_needs_a_few_blocks_of_memory(tmp_path: Path) -> None:
    assert int(run_python(CHILD, str(tmp_path))) < 400 * MIB
