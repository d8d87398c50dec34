"""The reference of the public names: a table of one module's names, then each name in full.

    ```{public-names} cordwood.policies
    KeepLast KeepBest
    ```

Without names, all of the module's `__all__`. A name that several modules have is documented in one
of them, and the tables of the others link to it. Types in signatures become links to public names.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

from cordwood.public_names import attributes_of

# A name that several of them have is documented in the first.
NAMESPACES = (
    "cordwood.errors",
    "cordwood.policies",
    "cordwood.recipes",
    "cordwood.results",
    "cordwood.keypath",
    "cordwood.state_dict",
    "cordwood.msgpack",
    "cordwood.testing.strategies",
    "cordwood.testing",
    "cordwood",
    "cordwood.compat.eformer.serialization",
    "cordwood.compat.eformer.pytree",
    "cordwood.compat.flax",
)
_PAGE = re.compile(r"\bdocs/([\w/-]+)\.md\b")
_SPECIAL = ("__getitem__",)
_BACK_LINK = re.compile(r'(href="[^"#]*)#cordwood(?:\.[a-z_]+)*\.(\w+)')
_NAME = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\([^()]*\))?")


class PublicName(NamedTuple):
    """A public name: the module that documents it, its own name, and its value."""

    module: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}"


@cache
def documented_names() -> dict[str, PublicName]:
    """Return all public names by their last part, each in the module that documents it."""
    names: dict[str, PublicName] = {}
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        for name in module.__all__:
            names.setdefault(name, PublicName(namespace, name, getattr(module, name)))
    return names


@cache
def _path_of_internal_name() -> dict[str, str]:
    """Return the public path of each short name and of each internal path."""
    paths = {name: public.path for name, public in documented_names().items()}
    for public in documented_names().values():
        value = public.value
        internal = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        paths[internal] = public.path
    return paths


def summary(value: Any) -> str:
    """Return the first sentence of a docstring."""
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def directive_for(public: PublicName) -> list[str]:
    """Return the autodoc directive for a name."""
    value = public.value
    if inspect.ismodule(value):
        return []
    if not inspect.isclass(value):
        kind = "function" if callable(value) else "data"
        return [f".. auto{kind}:: {public.path}", "   :no-value:" * (kind == "data"), ""]
    if issubclass(value, BaseException):
        return [f".. autoexception:: {public.path}", "   :show-inheritance:", ""]
    own = [name for name in _SPECIAL if name in vars(value) and not issubclass(value, tuple)]
    fields = [*attributes_of(value.__doc__ or "")]
    options = [":members:"]
    if public.module == "cordwood":  # a manager has the methods of StepReader too
        options.append(":inherited-members: Mapping")
    if any(base.__name__ in documented_names() for base in value.__bases__):
        options.append(":show-inheritance:")
    options += [f":exclude-members: {', '.join(fields)}"] if fields else []
    options += [f":special-members: {', '.join(own)}"] if own else []
    return [f".. autoclass:: {public.path}", *[f"   {option}" for option in options], ""]


class _PublicNames(SphinxDirective):
    """The table of the names of a module, and their documentation."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {"only-table": directives.flag, "no-table": directives.flag}

    def run(self) -> list[nodes.Node]:
        """Parse the table and the directives of autodoc in place of this directive."""
        module = self.arguments[0]
        names = " ".join(self.content).split() or importlib.import_module(module).__all__
        chosen = [documented_names()[name] for name in names]
        rows = [f"| {_link(public)} | {_escaped(summary(public.value))} |" for public in chosen]
        text = [] if "no-table" in self.options else ["| name | |", "|---|---|", *rows, ""]
        full = [public for public in chosen if public.module == module]
        if full and "only-table" not in self.options:
            body = [line for public in full for line in directive_for(public)]
            text += ["````{eval-rst}", *body, "````", ""]
        return self.parse_text_to_nodes("\n".join(text))


def _link(public: PublicName) -> str:
    role = "mod" if inspect.ismodule(public.value) else "obj"
    return f"{{py:{role}}}`{public.name} <{public.path}>`"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


class _LinkNames(SphinxPostTransform):
    """Code that is a public name, such as `cordwood.save` or `KeepLast(3)`, becomes a link."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        """Make the links of one document."""
        for node in list(self.document.findall(nodes.literal)):
            path = _path_in_code(node.astext())
            inside = isinstance(node.parent, (nodes.reference, pending_xref, nodes.title))
            if path is None or inside:
                continue
            domain = self.env.domains.python_domain
            link = domain.resolve_xref(
                self.env,
                self.env.docname,
                self.app.builder,
                "obj",
                path,
                pending_xref(),
                node.deepcopy(),
            )
            if link is not None:
                node.replace_self(link)


def _path_in_code(text: str) -> str | None:
    """Return the public path that a piece of code names; None where it names nothing else.

    Short names are those of classes: `save` may be a function, a method or an argument.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    parts = match[1].split(".")
    if parts[0] == "cordwood":
        names = [i for i, part in enumerate(parts) if part in documented_names()]
        if not names:
            return match[1]  # a module
        parts = parts[names[0] :]
    elif not parts[0][0].isupper():
        return None
    public = documented_names().get(parts[0])
    return ".".join([public.path, *parts[1:]]) if public is not None else None


def _resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> Any:
    """Resolve an internal path, or a short name, to the public name of the same object."""
    target = str(node.get("reftarget", ""))
    path = _path_of_internal_name().get(target)
    if node.get("refdomain") != "py" or path is None or path == target:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", path, node, content)


def _forget_overloads(_: Sphinx) -> None:
    """Show the signature of the implementation: overloads of 25 parameters differ in two."""
    for module in {public.value.__module__ for public in _functions()}:
        analyzer = ModuleAnalyzer.for_module(module)
        analyzer.analyze()
        analyzer.overloads.clear()


def _functions() -> Iterator[PublicName]:
    for public in documented_names().values():
        if inspect.isfunction(public.value) or inspect.isclass(public.value):
            yield public


def _hide_internals(
    _app: Sphinx, what: str, _name: str, value: Any, _options: Any, arguments: str, result: str
) -> tuple[str, str] | None:
    """Leave out the parameters of classes that only cordwood makes, and the type of `**options`."""
    if what == "class" and "Args:" not in (value.__doc__ or ""):
        public = documented_names().get(value.__name__)
        if public is not None and public.module in ("cordwood", "cordwood.results"):
            return "", ""
    mended = re.sub(r"<object object[^>]*>", "...", arguments or "")  # a private sentinel
    mended = re.sub(r"(\*\*\w+): [^,)]*Unpack\[[^]]*\]", r"\1", mended)
    return (mended, result) if mended != (arguments or "") else None


def _mend_docstring(
    _app: Sphinx, what: str, _name: str, value: Any, _options: Any, lines: list[str]
) -> None:
    """Turn what docstrings mean for `help()` into what napoleon and docutils read."""
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # else napoleon takes the text before a colon for the type
    if what == "class" and "Attributes:" in lines:
        _replace_attributes(value, lines)
    lines[:] = [_PAGE.sub(r":doc:`docs/\1.md </docs/\1>`", line) for line in lines]
    for i, line in enumerate(lines[:-2]):  # an indented block after a colon is shown as it is
        if line.endswith(":") and not lines[i + 1] and _indent(lines[i + 2]) > _indent(line):
            lines[i] = f"{line}:"


def _replace_attributes(value: type, lines: list[str]) -> None:
    """Replace the section "Attributes:" by a list of the fields with their types."""
    first = lines.index("Attributes:")
    after = [i for i in range(first, len(lines)) if not lines[i].strip()]
    types = getattr(value, "__annotations__", {})
    fields = [":Attributes:"]
    for name, text in attributes_of("\n".join(lines[first:])).items():
        kind = f" (``{types[name]}``)" if name in types else ""
        fields.append(f"    * **{name}**{kind} \N{EN DASH} {text}")
    lines[first : after[0] if after else len(lines)] = fields


def _mend_back_links(
    _app: Sphinx,
    page: str,
    _template: str,
    context: dict[str, Any],
    _doctree: nodes.document | None,
) -> None:
    """Let the links from sources lead to the module that documents a name.

    viewcode takes one public module for all names of a source, and some have names of two.
    """
    if page.startswith("_modules/cordwood"):
        context["body"] = _BACK_LINK.sub(_documented_anchor, context["body"])


def _documented_anchor(link: re.Match[str]) -> str:
    public = documented_names().get(link[2])
    return link[0] if public is None else f"{link[1]}#{public.path}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _hide_private_bases(
    app: Sphinx, name: str, value: object, options: object, bases: list[type]
) -> None:
    """Leave out base classes that have no page, such as those that check the arguments."""
    del app, name, value, options
    bases[:] = [base for base in bases if not base.__name__.startswith("_")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("autodoc-process-bases", _hide_private_bases)
    app.add_directive("public-names", _PublicNames)
    app.add_post_transform(_LinkNames)
    app.connect("builder-inited", _forget_overloads)
    app.connect("missing-reference", _resolve)
    app.connect("autodoc-process-signature", _hide_internals)
    app.connect("html-page-context", _mend_back_links)
    app.connect("autodoc-process-docstring", _mend_docstring, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
