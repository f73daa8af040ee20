"""Modules that take seconds to import, which happens where something of them is used first."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_mock_name", "_pytest", "pytest")):
            # pytest asks each global of a test module whether it is a test or a fixture.
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


boto3: Any = LazyModule("boto3")
peft: Any = LazyModule("peft")
distributed_checkpoint: Any = LazyModule("torch.distributed.checkpoint")
torch: Any = LazyModule("torch")
transformers: Any = LazyModule("transformers")


def load_file(path: Any, **options: Any) -> Any:
    from safetensors.torch import load_file

    return load_file(path, **options)


def save_file(tensors: Any, path: Any, metadata: Any = None) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata)
