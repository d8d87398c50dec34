"""The pages of shipped recipes, one for each family: `make recipe-pages` writes docs/recipes.

They are made of the tables in src/cordwood/recipes/families.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cordwood.recipes.shipped_recipes import ALIASES, FAMILIES, read_table

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "recipes"
TARGETS = {
    "flax": "a plain nested tree",
    "maxtext": "MaxText, scanned layers",
    "tunix": "Tunix",
    "easydel": "EasyDeL",
}
OPTIONS = ("scale", "add", "pad", "sizes", "when", "optional")


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {f"{family}.md": page_of(family) for family in FAMILIES}


def overview() -> str:
    """Return the table of all families."""
    heads = ["model", "family", "other names", *TARGETS]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for family in FAMILIES:
        table = read_table(family)
        names = ", ".join(f"`{name}`" for name, other in ALIASES.items() if other == family)
        marks = " | ".join("yes" if target in table["to"] else "" for target in TARGETS)
        rows.append(f"| [{table['title']}]({family}.md) | `{family}` | {names} | {marks} |")
    return "\n".join(rows)


def page_of(family: str) -> str:
    table = read_table(family)
    introduction = (
        f'`find_recipe("{family}", to=..., config=config)`: see [Shipped recipes](README.md). '
        "`{i}`, `{j}` and `{e}` are the numbers of layers and experts. The axes of an array are "
        "named from the outermost on, and `(n h)` is one axis made of two. A rule with `when` is "
        "there where that is not 0."
    )
    parts = [
        f"# {table['title']}",
        introduction,
        *[f"- {note}" for note in table.get("notes", ())],
        "Numbers of `config.json`, with their defaults; of `a | b` the first that is there counts:",
        _sizes(table["sizes"]),
        "Axes and indices whose sizes are checked, where `config.json` tells them:",
        _sizes(table["checked"]),
    ]
    if "required" in table:
        parts += [
            "Tensors that are not optional for some configurations:",
            _required(table["required"]),
        ]
    for target, rules in table["to"].items():
        parts += [f"## To {target}: {TARGETS[target]}", _rules(rules)]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ").replace("not 0.\n- ", "not 0.\n\n- ") + "\n"


def _sizes(sizes: Mapping[str, Any]) -> str:
    rows = [f"| `{name}` | {_code(size)} |" for name, size in sizes.items()]
    return "\n".join(["| size | value |", "|---|---|", *rows])


def _required(required: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    rows = [
        f"| `{key}` = `{value}` | {_listed([f'{name}**' for name in beginnings])} |"
        for key, by_value in required.items()
        for value, beginnings in by_value.items()
    ]
    return "\n".join(["| `config.json` | names |", "|---|---|", *rows])


def _rules(rules: Sequence[Mapping[str, Any]]) -> str:
    rows = ["| name in files | axes | path | axes | options |", "|---|---|---|---|---|"]
    for rule in rules:
        axes, path_axes = (_code(rule[key]) if key in rule else "" for key in ("axes", "path_axes"))
        options = ", ".join(
            f"`{name}: {_shown(rule[name])}`" for name in OPTIONS if name in rule
        ).replace("`optional: True`", "optional")
        paths = _listed(rule["paths"]) if "paths" in rule else "ignored"
        rows.append(f"| {_listed(rule['names'])} | {axes} | {paths} | {path_axes} | {options} |")
    return "\n".join(rows)


def _listed(names: str | Sequence[str]) -> str:
    return _code(names) if isinstance(names, str) else ", ".join(map(_code, names))


def _code(text: Any) -> str:
    return "`" + str(text).replace("|", "\\|") + "`"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {size}" for name, size in value.items())
    return str(value)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    readme = FOLDER / "README.md"
    before, after = split_readme(readme.read_text())
    readme.write_text(before + overview() + after)


def split_readme(text: str) -> tuple[str, str]:
    """Return the text before and after the table of families."""
    start = text.index("| model |")
    stop = text.index("\n\n", start)
    return text[:start], text[stop:]


if __name__ == "__main__":
    main()
