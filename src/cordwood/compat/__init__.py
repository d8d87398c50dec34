"""Modules with the names of Flax, eFormer and Orbax: switch to cordwood by changing one import."""
