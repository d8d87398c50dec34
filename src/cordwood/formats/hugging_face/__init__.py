"""Hugging Face's sharded checkpoints: safetensors files and a `*.safetensors.index.json`."""
