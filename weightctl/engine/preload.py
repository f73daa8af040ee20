"""Loading of torch on another thread, while other work does not need it yet."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

__all__ = ["preload_torch"]


def preload_torch() -> None:
    """Start to import torch on another thread; an error appears where torch is used."""
    Thread(target=_load, name="weightctl-preload").start()


def _load() -> None:
    with suppress(Exception):
        import torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
