"""Recipes beside transformers itself: `make recipes` runs these tests in `.venv-recipes`."""
