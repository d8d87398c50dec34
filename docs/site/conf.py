"""Settings of the documentation site; `make docs` builds it from the whole repository."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import get_type_hints

import cordwood

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the extensions

project = "cordwood"
author = "the authors of cordwood"
copyright = author
version = release = cordwood.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_parser",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "api_reference",
    "command_help",
    "contents_from_tables",
    "generated_tables",
    "source_pages",
]

# The pages are where GitHub shows them, so that one relative link works in both places.
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "docs/**.md",
    "benchmarks/*.md",
    "examples/*.md",
]
exclude_patterns = [".*", "build", "dist", "docs/site"]
root_doc = "docs/README"
html_additional_pages = {"index": "redirect.html"}

contents_pages = [
    "docs/measurements",
    "docs/design/README",
    "docs/recipes/README",
    "docs/reference/README",
    "examples/README",
]

# Warnings are errors (`make docs` passes -W -n). The exceptions:
nitpick_ignore_regex = [
    # Types of other projects: no lists of their pages, which the build would have to download.
    ("py:.*", r"(collections|concurrent|os|pathlib|types|typing|typing_extensions)\..*"),
    ("py:.*", r"(hypothesis|jax|jaxlib|ml_dtypes|numpy|np)\..*"),
    # A line of "Raises:" for errors that another function documents.
    ("py:exc", "Others"),
    ("py:class", r"(.*\.)?(T|What|PathOf)"),  # type variables
    # The argument `manager` of `tree_serialize_leaves`: a manager of eFormer or jax.
    ("py:class", r".*\.ArrayManager"),
    # The bases of policies, which check arguments.
    ("py:class", r"cordwood\.policies\.policy_arguments\..*"),
    # The dicts of options in the argument `migrations`, which `load` describes.
    ("py:class", r".*\.Migration"),
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # as GitHub names them

# `Checkpoint.load` has the signature of `load`, with annotations that are text: they are evaluated.
_hints = get_type_hints(cordwood.load)
_signature = inspect.signature(cordwood.Checkpoint.load)
_parameters = [
    parameter.replace(annotation=_hints.get(name, parameter.annotation))
    for name, parameter in _signature.parameters.items()
]
setattr(cordwood.Checkpoint.load, "__signature__", _signature.replace(parameters=_parameters))  # noqa: B010

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # a base class documents what its subclasses do
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = False
add_module_names = False
python_use_unqualified_type_names = True
python_display_short_literal_types = True
maximum_signature_line_length = 68
toc_object_entries_show_parents = "hide"
default_role = "code"  # docstrings write `name` for code
highlight_language = "text"
smartquotes_action = "D"  # dashes only: quotes are often code

html_theme = "furo"
html_title = "cordwood"
html_static_path = ["static"]
html_favicon = "static/logo.svg"
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "static" / "scorer.js")
templates_path = ["templates"]
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_theme_options = {
    "navigation_with_keys": True,
    "light_logo": "logo.svg",
    "dark_logo": "logo.svg",
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
