"""The page of the viewer: one HTML document with its scripts and its style.

A server answers what it asks for; or it is exported, and holds a bounded set of resources itself.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent

# The scripts of `static/`, in the order in which they run. Each is a strict function of its own:
# they share what they add to the object `cordwood`.
SCRIPTS: tuple[str, ...] = (
    "text.js",
    "elements.js",
    "data.js",
    "router.js",
    "rows.js",
    "table.js",
    "charts.js",
    "chart_heat_map.js",
    "chart_lines.js",
    "treemap_layout.js",
    "treemap.js",
    "checkpoint_view.js",
    "leaf_view.js",
    "diff_leaf_view.js",
    "layer_matrix.js",
    "diff_view.js",
    "run_steps.js",
    "run_norms.js",
    "run_view.js",
    "shell.js",  # the last one: it starts the page
)

_INSTALL = "cordwood view needs Jinja2: install it with pip install 'cordwood[view]'"


class Page(NamedTuple):
    """The page as HTML in UTF-8, and the Content-Security-Policy that it needs."""

    html: str
    policy: str


class MissingExtraError(OSError):
    """Jinja2 is not installed."""


def page(resources: Iterable[tuple[str, bytes]] | None = None, *, title: str = "cordwood") -> Page:
    """Return the page.

    Args:
        resources: for an export, the names of resources and their values as JSON in ASCII. None:
            the page asks its server for them.
        title: the title of the document.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as e:
        raise MissingExtraError(_INSTALL) from e
    texts = [(_FOLDER / "static" / name).read_text("utf-8") for name in SCRIPTS]
    functions = [f'(function (cordwood) {{\n"use strict";\n{each}}})(cordwood);' for each in texts]
    script = "\n".join(["globalThis.cordwood = {};", *functions])
    style = (_FOLDER / "static" / "style.css").read_text("utf-8")
    assert "</script" not in script.lower(), "a script would end its own element"
    assert "</style" not in style.lower(), "the style would end its own element"
    in_export = resources is not None
    policy = _policy(script, style, connect="'none'" if in_export else "'self'")
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"), autoescape=True, undefined=StrictUndefined
    )
    data = [(name, embedded(json)) for name, json in resources or ()]
    html = environment.get_template("page.html").render(
        title=title,
        script=script,
        style=style,
        policy=policy if in_export else None,
        resources=data,
        in_export=in_export,
    )
    return Page(html, policy + "; frame-ancestors 'none'")


def embedded(json: bytes) -> str:
    r"""Return JSON so that it can stand in a script element: no `<`, `>` or `&`.

    >>> embedded(b'"</script>"')
    '"\\u003c/script\\u003e"'
    """
    text = json.decode("ascii")
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: str, style: str, *, connect: str) -> str:
    rules = (
        "default-src 'none'",
        f"script-src '{_source_hash(script)}'",
        f"style-src '{_source_hash(style)}'",
        f"connect-src {connect}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # the browser refuses markup from strings
        "trusted-types 'none'",
    )
    return "; ".join(rules)


def _source_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
