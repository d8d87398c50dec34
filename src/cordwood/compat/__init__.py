"""Modules with the names of Flax's and eFormer's: switch to cordwood by changing one import."""
