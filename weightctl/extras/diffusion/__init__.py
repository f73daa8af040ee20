"""Diffusion transformers as data: the names of their tensors in diffusers' and original files.

The original names are those of the files that the authors of a model published. GGUF files for
ComfyUI and stable-diffusion.cpp have them too. In the code, `hugging_face` is the naming convention
of diffusers, and `gguf` is that of original files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.extras.diffusion.index import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.extras.diffusion.matching import RecognizedDiffusion
    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.diffusion import FoundDiffusion
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import Header
    from weightctl.weights.tree import Checkpoint

__all__ = ["FAMILIES", "find", "plan", "recognize"]


def find(header: Header) -> FoundDiffusion | None:
    from weightctl.extras.diffusion.recognition import find_names

    return find_names(header)


def recognize(weights: Checkpoint) -> RecognizedDiffusion | None:
    from weightctl.extras.diffusion.matching import match

    return match(weights)


def plan(
    weights: Checkpoint,
    format_name: str,
    wanted: NamingConvention | None,
    exclude: Sequence[str],
    *,
    is_model: bool,
) -> tuple[Plan, Sequence[str]]:
    from weightctl.extras.diffusion.plans import plan_diffusion

    return plan_diffusion(weights, format_name, wanted, exclude, is_model=is_model)
