"""What the options of a conversion can be. The command line reads it before anything is planned."""

from __future__ import annotations

from enum import Enum

# The most bytes of work that a worker gets at a time.
DEFAULT_TASK = 2 << 30


class Names(Enum):
    """The naming convention of an output: by default the target's, for supported families.

    `OPENAI` exists for Whisper and CLIP models only.
    """

    AUTO = "auto"
    KEEP = "keep"
    HF = "hf"
    GGUF = "gguf"
    OPENAI = "openai"


class NonFinite(Enum):
    """What to do with values that are not finite in block types, which cannot store them."""

    ERROR = "error"
    ZERO = "zero"


class OptionalPart(Enum):
    """A part of a model that can be left out: layers for MTP, or all others."""

    MTP = "mtp"
    MAIN = "main"
