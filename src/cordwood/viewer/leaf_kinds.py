"""The group, the layer and the kind of a leaf, from its key path. Pure.

`params/h_3/attn/c_attn/kernel` is in layer 3 of the stack `h`, and its kind is "qkv". The usual
namings of Flax linen and NNX, Haiku, Equinox, Hugging Face, PyTorch and MaxText are recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cordwood import dtypes
from cordwood.index import ARRAY_KINDS, Leaf
from cordwood.keypath import DictKey, KeyPath


class LeafPlace(NamedTuple):
    """The place of a leaf in its model.

    Attributes:
        group: "params", or the key of a tree like the parameters: "mu", "nu", "ema" ...
        stack: the names before the number of the layer. A model may have several stacks, such as
            those of an encoder and a decoder. Empty for a leaf outside of all layers.
        layer: the number of the layer; None outside of all layers, and for an array that holds
            all layers of its stack.
        kind: "q", "up", "norm", "embedding" ...; or the names after the number of the layer,
            with "*" for other numbers.
        typical: True if the stack has a name that stacks of layers usually have, such as
            `layers` or `h`; False if it has another, as in `Conv_3`.
    """

    group: str
    stack: tuple[str, ...]
    layer: int | None
    kind: str
    typical: bool


# Keys of optimizer states that hold a tree like the parameters.
FIRST_MOMENTS = frozenset({"mu", "m", "trace", "exp_avg", "momentum_buffer"})
SECOND_MOMENTS = frozenset({"nu", "v", "nu_max", "v_row", "v_col", "exp_avg_sq"})
_COUNTERS = {"count", "step", "gradient_step", "global_step", "num_steps", "notfinite_count"}
_MOMENTS = FIRST_MOMENTS | SECOND_MOMENTS
_OPTIMIZERS = {
    *("opt_state", "opt_states", "optimizer_state", "optimizer_states", "optim_state"),
    *("optimizer", "optimizers", "optim", "opt", "inner_state", "inner_states"),
}
_MODELS = {"model", "target", "params"}
_COPIES = {"ema", "ema_params", "params_ema", "target_params", "batch_stats", "grads", "acc_grads"}

# Names of stacks of layers, in lower case without '_'.
_STACKED = {"h", "layers", "blocks", "stages", "resblocks", "moelayers", "denselayers"}
_LAYERS = {
    *_STACKED,
    *("layer", "block", "stage", "resblock", "residualblock", "resnetblock", "encoder1dblock"),
    *("encoderlayer", "encoderblock", "decoderlayer", "decoderblock"),
    *("transformerblock", "transformerlayer", "scantransformerblock"),
}

# The kind of a weight by the name of its module, in lower case without '_'.
_NAMES_OF_KIND = {
    "q": "q query wq toq qproj qlin queryproj queries",
    "k": "k key wk tok kproj klin keyproj keys",
    "v": "v value wv tov vproj vlin valueproj values",
    "qkv": "qkv cattn querykeyvalue qkvproj inproj inprojweight wqkv toqkv kv kvproj wkv tokv "
    "qkveinsum kveinsum",
    "o": "o oproj outproj outputproj out toout outlin attnvec attnveceinsum attnout",
    "up": "up upproj cfc fc fc1 w3 wi wi1 fcin linear1 lin1 densehto4h intermediate",
    "down": "down downproj fc2 w2 fcout linear2 lin2 dense4htoh",
    "gate": "gate gateproj w1 wi0 gatingeinsum gateupproj router",
    "embedding": "embedding embeddings embed embedder wte wpe embedtokens embedpositions shared "
    "tokembeddings tokembed tokenembed tokenembedder tokenembedding wordembeddings posembed "
    "posembedding positionembedding positionembeddings positionembedder tokentypeembeddings "
    "inputembedding patchembed patchembedding clstoken relativeattentionbias decoderembedder",
    "head": "head lmhead logitsdense logits classifier score embedout",
    "conv": "conv conv1d conv2d convolution",
}
# The same for names that mean different kinds in different modules.
_NAMES_IN_ATTENTION = {"o": "dense proj cproj wo linear", "q": "qeinsum"}
_NAMES_IN_MLP = {
    "up": "dense dense0 linear0 key",
    "down": "dense1 linear linear1 proj cproj wo value out output",
}


def _kinds(names_of_kind: dict[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in names_of_kind.items() for name in names.split()}


_KINDS = _kinds(_NAMES_OF_KIND)
_KINDS_IN_ATTENTION = _kinds(_NAMES_IN_ATTENTION)
_KINDS_IN_MLP = _kinds(_NAMES_IN_MLP)

_ATTENTION = re.compile("attn|attention", re.IGNORECASE)
_MLP = re.compile("mlp|ffn|ffw|feed_?forward|expert|moe|denserelu", re.IGNORECASE)
_CROSS = re.compile("cross|enc(oder)?_?dec|encoder_?att", re.IGNORECASE)
_NORM = re.compile(r"norm|(^|_)ln(_|\d|$)|^bn_?\d*$", re.IGNORECASE)
_LORA = re.compile("lora", re.IGNORECASE)
_BIASES = {"bias", "biases", "b"}
# Names of arrays within their module.
_VALUES = {*_BIASES, "kernel", "weight", "weights", "w", "scale", "array", "embedding"}

_NUMBER = re.compile("[0-9]{1,9}")
_NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9_\-]*?)[_\-]?([0-9]{1,9})")  # Block_3
_INFIX = re.compile(r"([A-Za-z]+)_?([0-9]{1,9})_(.+)")  # h3_attn


@lru_cache(maxsize=100_000)  # the steps of a run have the same key paths
def place_of(key_path: KeyPath) -> LeafPlace | None:
    """Return the place of an array by its key path; None for other state of an optimizer.

    >>> place_of(("params", "h_3", "attn", "c_attn", "kernel"))
    LeafPlace(group='params', stack=('params', 'h'), layer=3, kind='qkv', typical=True)
    >>> place_of(("opt_state", 0, "mu", "lm_head", "kernel"))
    LeafPlace(group='mu', stack=(), layer=None, kind='head', typical=False)
    """
    group, names = _group(_names(key_path))
    if group is None:
        return None
    layer = _find_layer(names)
    if layer is None:
        return LeafPlace(group, (), None, kind_of(names) or "other", typical=False)
    kind = (
        kind_of(layer.inner_names, in_layer=True) or _without_numbers(layer.inner_names) or "array"
    )
    return LeafPlace(group, layer.stack, layer.number, kind, layer.typical)


def _without_numbers(names: Sequence[str]) -> str:
    """Return the names as a kind; experts and other numbered parts of a layer share it."""
    return "/".join(["*" if _NUMBER.fullmatch(name) else name for name in names])


def _names(key_path: KeyPath) -> list[str]:
    """Return the keys as strings; those that join several names are cut."""
    texts = [str(key.value) if isinstance(key, DictKey) else str(key) for key in key_path]
    names = [name for text in texts for name in re.split("[/.]", text[:4096]) if name.strip("~")]
    is_field = len(names) > 1 and names[-1] in ("value", "raw_value")
    if is_field and (names[-2] in _VALUES or _LORA.search(names[-2])):
        names.pop()  # of a variable of NNX
    return names


def is_weight(leaf: Leaf) -> bool:
    """Return True for an array that may be a weight: real or complex, or integers of 8 bits.

    PRNG keys, also as raw uint32, their counts and the counters of steps are none: the norm of a
    key alone is 1e9 times that of a layer.
    """
    if leaf.kind not in ARRAY_KINDS or leaf.kind == "prng_key":
        return False
    if leaf.dtype.startswith(("int", "uint")):
        return dtypes.itemsize(leaf.dtype) == 1
    return leaf.dtype.startswith(("float", "bfloat", "complex"))


def group_of(key_path: KeyPath) -> str | None:
    """Return the group of a leaf; None for state of an optimizer that is no moment."""
    place = place_of(key_path)
    return None if place is None else place.group


def is_counter(key_path: KeyPath) -> bool:
    """Return True for a number of steps: of an optimizer, or at the top of the tree.

    >>> is_counter(("opt_state", 0, "count")), is_counter(("params", "histogram", "count"))
    (True, False)
    """
    names = _names(key_path)
    if not names or names[-1] not in _COUNTERS:
        return False
    return len(names) <= 2 or group_of(key_path) is None


def _group(names: list[str]) -> tuple[str | None, list[str]]:
    """Return the group of a leaf, and its names below that group."""
    in_optimizer = False
    for position, name in enumerate(names[:-1]):
        inner_names = names[position + 1 :]
        if name in _OPTIMIZERS:
            in_optimizer = True
        elif in_optimizer and name in _MODELS:
            return "params", inner_names
        elif name in _COPIES or (
            name in _MOMENTS and (in_optimizer or _follows_a_position(names, position))
        ):
            return name, inner_names
    return (None if in_optimizer else "params"), names


def _follows_a_position(names: list[str], position: int) -> bool:
    """Return True for a field of an optimizer's state that was saved without a name for it."""
    return names[position] in ("mu", "nu") and all(map(_NUMBER.fullmatch, names[:position]))


class _Layer(NamedTuple):
    """The layer of a leaf."""

    stack: tuple[str, ...]
    number: int | None
    inner_names: list[str]  # names after it
    typical: bool


def _find_layer(names: list[str]) -> _Layer | None:
    """Return the first layer whose stack has a typical name, or else the first of another."""
    unusual = None
    for position in range(len(names)):
        layer = _layer_at(names, position)
        if layer and layer.typical:
            return layer
        unusual = unusual or layer
    for position, name in enumerate(names[:-1]):
        if _squeezed(name) in _STACKED or name.lower().startswith("scan"):
            return _Layer(tuple(names[: position + 1]), None, names[position + 1 :], typical=True)
    return unusual


def _layer_at(names: list[str], position: int) -> _Layer | None:
    name, before, inner_names = names[position], tuple(names[:position]), names[position + 1 :]
    if _NUMBER.fullmatch(name):
        typical = bool(before) and _squeezed(before[-1]) in _LAYERS
        return _Layer(before, int(name), inner_names, typical)
    if (match := _INFIX.fullmatch(name)) and _squeezed(match[1]) in _LAYERS:
        return _Layer((*before, match[1]), int(match[2]), [match[3], *inner_names], typical=True)
    if match := _NUMBERED.fullmatch(name):
        typical = _squeezed(match[1]) in _LAYERS
        of_a_kind = _squeezed(name) in _KINDS or not inner_names  # fc1 is no layer 1
        if typical or not of_a_kind:
            return _Layer((*before, match[1]), int(match[2]), inner_names, typical)
    return None


def _squeezed(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def kind_of(names: Sequence[str], *, in_layer: bool = False) -> str | None:
    """Return the kind of an array from the names after its layer; None if they are unusual."""
    if any(_NORM.search(name) for name in names):
        return "norm"
    if names and names[-1].lower() in _BIASES:
        return "bias"
    modules = list(names)
    while len(modules) > 1 and (_squeezed(modules[-1]) in _VALUES or _LORA.search(modules[-1])):
        modules.pop()
    positions = reversed(range(len(modules)))
    kinds = (_kind_at(modules, position, in_layer=in_layer) for position in positions)
    kind = next(filter(None, kinds), None)
    if kind is None and names and _squeezed(names[-1]) == "embedding":
        kind = "embedding"
    if kind and in_layer and any(_CROSS.search(name) for name in names):
        kind = f"cross {kind}"
    if kind and any(_LORA.search(name) for name in names):
        kind = f"{kind} lora"
    return kind


def _kind_at(names: Sequence[str], position: int, *, in_layer: bool) -> str | None:
    name = _squeezed(names[position])
    if name == "output":
        return "down" if in_layer else "head"
    for parent in reversed(names[:position]):
        if _ATTENTION.search(parent):
            return _KINDS_IN_ATTENTION.get(name) or _KINDS.get(name)
        if _MLP.search(parent):
            return _KINDS_IN_MLP.get(name) or _KINDS.get(name)
    return _KINDS.get(name)
