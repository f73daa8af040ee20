"""The types that transformers lacks and that the tests compute themselves, by definitions in torch.

Importing the module registers them.
"""

from __future__ import annotations

from plamo_model import Plamo2Config
from rwkv6_model import Rwkv6Config
from rwkv_model import Rwkv7Config

__all__ = ["OWN_TYPES"]

OWN_TYPES = {kind.model_type for kind in (Plamo2Config, Rwkv6Config, Rwkv7Config)}
