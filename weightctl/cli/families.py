"""The list of supported model families, for `weightctl ls --families` and the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.render import Cell, show_lines, show_table
from weightctl.families import FAMILIES
from weightctl.families.diffusion import DIFFUSION_FAMILIES
from weightctl.sharding.vllm_names import VLLM_FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator


class FamilyEntry(NamedTuple):
    """A model family, and what weightctl can do with its models.

    `model_types` are the values of `model_type` in config.json, `gguf` is the architecture in GGUF,
    and `classes` are the names of transformers' classes. `can_run` says whether `verify` can run
    the models, and `in_vllm` whether `shard --layout vllm` can write them.
    """

    name: str
    model_types: tuple[str, ...]
    gguf: str
    classes: tuple[str, ...]
    can_run: bool
    in_vllm: bool


def list_families() -> Iterator[FamilyEntry]:
    """Yield all supported families in the order of their names."""
    for name, line in sorted(FAMILIES.items()):
        family = line.load()
        yield FamilyEntry(
            name,
            line.model_types,
            line.gguf,
            tuple(each.class_name for each in family.model_types.values()),
            bool(family.module),
            name in VLLM_FAMILIES,
        )


def show_families() -> None:
    """Print the supported families as two tables: text models, and diffusion transformers."""
    heads = ("family", "model_type", "GGUF architecture", "runs in verify", "vLLM layout")
    rows = [
        [
            Cell(family.name),
            Cell(", ".join(family.model_types)),
            Cell(family.gguf),
            Cell("yes" if family.can_run else "no"),
            Cell("yes" if family.in_vllm else "no"),
        ]
        for family in list_families()
    ]
    show_table([[Cell(head, "dim") for head in heads], *rows])
    show_lines([[]])
    _show_diffusion_families()


def _show_diffusion_families() -> None:
    heads = ("diffusion family", "diffusers class", "GGUF architecture")
    rows = [
        [Cell(name), Cell(line.class_name), Cell(name)]
        for name, line in sorted(DIFFUSION_FAMILIES.items())
    ]
    show_table([[Cell(head, "dim") for head in heads], *rows])


def families_document() -> dict[str, Any]:
    """Return the supported families as JSON, according to `schemas/ls.json` in the package."""
    return {
        "families": [
            {
                "family": family.name,
                "model_types": list(family.model_types),
                "gguf_architecture": family.gguf,
                "transformers_classes": list(family.classes),
                "runs_in_verify": family.can_run,
                "vllm_layout": family.in_vllm,
            }
            for family in list_families()
        ],
        "diffusion_families": [
            {"family": name, "diffusers_class": line.class_name, "gguf_architecture": name}
            for name, line in sorted(DIFFUSION_FAMILIES.items())
        ],
    }
