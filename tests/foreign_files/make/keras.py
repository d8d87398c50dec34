"""Weights and models of Keras 3."""

from __future__ import annotations

import sys
from pathlib import Path

import keras


def main(folder: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.save_weights(folder / "model.weights.h5")
    model.save(folder / "model.keras")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
