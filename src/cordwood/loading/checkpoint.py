"""An open checkpoint: a mapping from key paths to leaves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Self, Unpack

from cordwood.did_you_mean import absent_leaf
from cordwood.formats.format_protocol import OpenOptions
from cordwood.index import Leaf, leaf_text
from cordwood.io.stale_handles import retry_stale
from cordwood.keypath import format_path
from cordwood.loading.leaf_reader import LeafReader
from cordwood.loading.load_options import LoadOptions, ReadOptions
from cordwood.loading.load_tree import load_tree
from cordwood.loading.open_reader import open_reader
from cordwood.loading.refuse_delta import explain_delta
from cordwood.loading.stored_leaf import StoredLeaf
from cordwood.message_text import counted, printable, size_text
from cordwood.plan.path_spellings import plain_name, plain_pattern
from cordwood.recipes.recipe import Recipe
from cordwood.storage.locations import LocalPath, Location


def open_at(
    location: Location,
    *,
    format: str | None = None,
    prefix: str | None = None,
    max_bytes: int | None = None,
    scratch: LocalPath | None = None,
    recipe: Recipe | None = None,
) -> Checkpoint:
    """Open a checkpoint, as `open`."""
    options = OpenOptions(max_bytes, scratch=scratch)
    if recipe is not None:
        from cordwood.recipes.map_index import map_index, require_alone

        require_alone(recipe)

    def read() -> Checkpoint:
        reader = open_reader(location, format=format, prefix=prefix, options=options)
        if recipe is None:
            return Checkpoint(reader)
        try:
            return Checkpoint(reader.mapped(map_index(reader.index, recipe, where=reader.path)))
        except BaseException:
            reader.opened.close()
            raise

    return retry_stale(read)


class Checkpoint(Mapping[str, StoredLeaf]):
    """An open checkpoint: a mapping from key path strings to leaves.

    Attributes:
        path: the path or URL that was opened.
        format: the name of its format.
        index: the structure, and the type and location of each leaf (`cordwood.index.Index`).
        is_current: a function that returns True while no later save has replaced the checkpoint.
    """

    def __init__(self, reader: LeafReader) -> None:
        self.path = reader.path
        self.format = reader.opened.format
        self.index = reader.index
        self.is_current = reader.opened.is_current
        self._reader = reader

    @cached_property
    def _by_name(self) -> dict[str, Leaf]:
        return {format_path(leaf.key_path): leaf for leaf in self.index.leaves}

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings that are stored beside the tree."""
        return self.index.metadata

    def __getitem__(self, key_path: str) -> StoredLeaf:
        """Return a leaf; nothing of it is read yet. Raises KeyError if there is no such leaf."""
        return StoredLeaf(self._find_leaf(key_path), self._reader)

    def _find_leaf(self, key_path: str) -> Leaf:
        """Return the entry of a leaf in the index, by its key path in any spelling.

        Raises KeyError if there is no such leaf.
        """
        try:
            return self._by_name[key_path]
        except (KeyError, TypeError):
            if not isinstance(key_path, str):
                raise KeyError(
                    f"{self.path}: expected a key path, a str such as 'params/w', found "
                    f"{key_path!r:.80}"
                ) from None
            plain = plain_pattern(key_path, self.index.naming)
            names = [name for name in self._by_name if plain_name(name, self.index.naming) == plain]
            if len(names) == 1:
                return self._by_name[names[0]]
            name = self._container(plain) or key_path
            text = absent_leaf(name, self._by_name, path=self.path)
            hint = explain_delta(self._reader)
            raise KeyError(f"{text}. {hint}" if hint else text) from None

    def _container(self, plain: str) -> str | None:
        """Return the container of a key path in plain spelling, as the leaves in it spell it."""
        for name in self._by_name:
            if plain_name(name, self.index.naming).startswith(f"{plain}/"):
                container = "/".join(name.split("/")[: plain.count("/") + 1])
                return container if name != container else None
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self.index.leaves)

    def load(self, like: Any = None, **options: Unpack[ReadOptions]) -> Any:
        """Return the tree, or the selected part of it; arguments as for `cordwood.load`."""
        for name in options.keys() - {*LoadOptions._fields}:
            raise TypeError(f"Checkpoint.load() got an unexpected keyword argument {name!r}")
        return load_tree(self._reader, like, LoadOptions(**options))

    def close(self) -> None:
        """Close the files. Arrays that map a file stay valid."""
        self._reader.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def __repr__(self) -> str:
        from cordwood.notebook.html_parts import leaf_lines

        sizes = [StoredLeaf(leaf, self._reader).nbytes for leaf in self.index.leaves]
        rows = (
            (name, leaf_text(leaf), size_text(size))
            for (name, leaf), size in zip(self._by_name.items(), sizes, strict=True)
        )
        count = counted(len(sizes), "leaf", "leaves")
        head = f"<{self.format} checkpoint {printable(self.path)}: {count}, {size_text(sum(sizes))}"
        return "\n".join([head, *leaf_lines(rows, len(sizes))]) + ">"

    def _repr_html_(self) -> str:
        from cordwood.notebook.checkpoint_html import checkpoint_html

        return checkpoint_html(self.path, self.format, self.index)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        del subtree_renderer
        from cordwood.notebook.checkpoint_html import treescope_checkpoint

        return treescope_checkpoint(self.path, self.format, self.index, path)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


def _signature_of_load() -> inspect.Signature:
    """Return the signature of `Checkpoint.load` as `help` shows it: as of the function `load`."""
    checkpoint, *_ = inspect.signature(Checkpoint.load).parameters.values()
    like = inspect.Parameter(
        "like", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Any"
    )
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=LoadOptions._field_defaults[name],
            annotation=annotation.__forward_arg__,
        )
        for name, annotation in LoadOptions.__annotations__.items()
    ]
    return inspect.Signature([checkpoint, like, *options], return_annotation="Any")


setattr(Checkpoint.load, "__signature__", _signature_of_load())  # noqa: B010
