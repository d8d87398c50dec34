"""HTML for notebooks and trees for treescope: values in, text out."""
