"""The table of diffusion transformers, by which only the needed file is read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weightctl.extras.diffusion.family import DiffusionFamily

_TABLES = Path(__file__).parent / "tables"


class DiffusionLine(NamedTuple):
    """A `DiffusionEntry`; `source` is the file in `tables/` that describes the family."""

    source: str
    class_name: str
    original: tuple[str, ...]
    diffusers: tuple[str, ...]
    kept: str

    def load(self) -> DiffusionFamily:
        return _read_table(self.source)


@cache
def _read_table(name: str) -> DiffusionFamily:
    from weightctl.extras.diffusion.family import read_diffusion_family

    return read_diffusion_family(_TABLES / name)


# By the value of `general.architecture` in GGUF files. To add a family, add a line here, a file
# with the names of its tensors, and functions for its config in `rules.py`.
FAMILIES: dict[str, DiffusionLine] = {
    "flux": DiffusionLine(
        "flux.toml",
        "FluxTransformer2DModel",
        ("double_blocks.0.img_mod.lin.weight", "single_blocks.0.linear1.weight"),
        ("single_transformer_blocks.0.proj_mlp.weight", "context_embedder.weight"),
        r"^(txt_in|img_in|time_in|vector_in|guidance_in|final_layer)\.",
    ),
    "sd3": DiffusionLine(
        "sd3.toml",
        "SD3Transformer2DModel",
        ("joint_blocks.0.x_block.attn.qkv.weight", "x_embedder.proj.weight"),
        ("transformer_blocks.0.attn.add_q_proj.weight", "pos_embed.proj.weight"),
        r"^((final_layer|context_embedder|t_embedder|y_embedder|x_embedder)\.|pos_embed$)",
    ),
    "qwen_image": DiffusionLine(
        "qwen_image.toml",
        "QwenImageTransformer2DModel",
        ("transformer_blocks.0.img_mod.1.weight", "txt_norm.weight"),
        ("transformer_blocks.0.img_mod.1.weight", "txt_norm.weight"),
        r"^(img_in|txt_in|time_text_embed|norm_out|proj_out)\.",
    ),
    "wan": DiffusionLine(
        "wan.toml",
        "WanTransformer3DModel",
        ("blocks.0.self_attn.q.weight", "head.modulation"),
        ("blocks.0.attn1.to_q.weight", "scale_shift_table"),
        r"modulation|^(patch_embedding|text_embedding|time_projection|time_embedding|img_emb|head)"
        r"\.",
    ),
}


def find_architecture(class_name: object) -> str | None:
    """Return the GGUF architecture of a class of diffusers, None if it is not supported."""
    lines = FAMILIES.items()
    return next((name for name, line in lines if line.class_name == class_name), None)
