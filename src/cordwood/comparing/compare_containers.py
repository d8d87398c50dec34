"""Containers of different kinds in two trees, and empty ones on one side only."""

from __future__ import annotations

from cordwood.index import Index, Naming
from cordwood.keypath import path_label
from cordwood.loading.matching.match_containers import Container, containers_by_name, kinds_differ
from cordwood.loading.matching.match_names import match_name
from cordwood.plan.select_leaves import SelectedLeaves


def container_differences(part: SelectedLeaves, second: Index) -> list[str]:
    """Return a line for each container of different kinds, and each empty one on one side only."""
    first = part.stored
    namings: set[Naming] = {first.naming, second.naming}
    if namings & {"dotted", "slashed"}:
        return []  # such formats have names, but no containers
    order: list[Naming] = ["keys", "strings", "exact"]
    common = min(namings, key=order.index)
    first_nodes, second_nodes = (
        containers_by_name(index.structure, common) for index in (first, second)
    )
    moved = {match_name(path, common) for path in part.moved}
    lines = []
    for name, one in first_nodes.items():
        other = second_nodes.get(name)
        if other is None:
            if one.empty:
                lines.append(f"{path_label(one.path)}: {_shown(one)} only in a")
        elif kinds_differ(one, other, is_moved=name in moved):
            lines.append(f"{path_label(one.path)}: {_shown(one)} | {_shown(other)}")
    lines += [
        f"{path_label(other.path)}: {_shown(other)} only in b"
        for name, other in second_nodes.items()
        if other.empty and name not in first_nodes
    ]
    return lines


def _shown(container: Container) -> str:
    bare = not container.empty or container.kind == "None" or container.kind.startswith("an ")
    return container.kind if bare else f"empty {container.kind}"
