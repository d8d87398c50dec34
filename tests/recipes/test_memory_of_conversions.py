"""Peak memory of a conversion with a recipe: a few blocks, whatever the size of the arrays."""

from __future__ import annotations

from pathlib import Path

from tests.children import run_python

MIB = 1 << 20

# 512 MiB in 16 layers, transposed and stacked along the second axis.
CHILD = """
import json, os, struct, sys
import numpy as np
import cordwood
from cordwood.recipes import Recipe, Rule

os.chdir(sys.argv[1])

def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

names = [f"layers.{i}.w" for i in range(16)]
size = 4096 * 4096 * 2
head = {
    name: {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [i * size, (i + 1) * size]}
    for i, name in enumerate(names)
}
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
with open("layers.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + 16 * size)
recipe = Recipe([Rule("layers.{i}.w", "(n h) d", "w", "d i n h", sizes={"h": 128})])
cordwood.save("small.safetensors", {"w": np.ones(3)})
cordwood.convert("small.safetensors", "small")
before = peak()
cordwood.convert("layers.safetensors", "converted", recipe=recipe)
print(peak() - before)
"""


def test_a_conversion_needs_a_few_blocks_of_memory(tmp_path: Path) -> None:
    assert int(run_python(CHILD, str(tmp_path))) < 400 * MIB
