"""Files of PyTorch, and safetensors files with the dtypes that torch alone has."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.distributed import checkpoint

from tests.foreign_files.make.values import write_values


def main(folder: Path) -> None:
    tensors = {
        "embed.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "embed.bias": torch.arange(3, dtype=torch.bfloat16),
        "scale": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
        "steps": torch.tensor([7]),
    }
    torch.save(tensors, folder / "state.pt")
    torch.save(tensors, folder / "pytorch_model.bin")
    torch.save(tensors, folder / "old.pth", _use_new_zipfile_serialization=False)
    script = torch.jit.script(torch.nn.Linear(2, 2))
    script.save(str(folder / "script.pt"))
    checkpoint.save({"w": tensors["steps"]}, checkpoint_id=folder / "distributed", no_dist=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load_file(folder / "model.safetensors")
    write_values(
        folder / "model.safetensors",
        {name: _array(tensor) for name, tensor in loaded.items()},
    )


def _array(tensor: torch.Tensor) -> object:
    """Return an array; of dtypes that numpy lacks, by their bits."""
    import ml_dtypes

    bits = {
        torch.bfloat16: (torch.uint16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    }
    if tensor.dtype not in bits:
        return tensor.numpy()
    unsigned, dtype = bits[tensor.dtype]
    return tensor.view(unsigned).numpy().view(dtype)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
