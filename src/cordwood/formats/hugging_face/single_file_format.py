"""The format of directories with a single `model.safetensors`: recognise them."""

from __future__ import annotations

from cordwood.formats.hugging_face.format import is_of_a_trainer
from cordwood.formats.place import Match, Place
from cordwood.formats.table import Format


def matches(format: Format, place: Place) -> Match:
    """Return how well a directory fits.

    The output of a Trainer is its model, with checkpoints in directories beside it. In another
    directory of steps a single file counts only if there is nothing else: it is MAYBE one.
    """
    if place.file is not None or not place.has(format.index_name):
        return Match.NO
    if place.search_below:
        return Match.MAYBE
    return Match.LIKELY if is_of_a_trainer(place.folders) else Match.NO
