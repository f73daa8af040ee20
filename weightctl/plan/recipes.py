"""Choice of the type of each matrix of a model by a recipe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.model import ARCHITECTURE, DescribedModel
from weightctl.families.names import is_matrix_weight, layer, role
from weightctl.plan.recipe_lines import OTHERWISE, RECIPE_TABLE, Recipe, RecipeLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue


class TensorRole(NamedTuple):
    """A tensor and its place in the model, which the conditions of a recipe apply to.

    `layer` is its number among the `layers` that are counted for its role, and `place` its position
    among the tensors of its role. `weighted` is True if the model has an importance matrix.
    """

    info: TensorInfo
    role: str
    model: DescribedModel
    layer: int
    layers: int
    weighted: bool
    place: int

    @property
    def is_outer(self) -> bool:
        """Whether the layer is in the first or last eighth."""
        return self.layer < self.layers // 8 or self.layer >= 7 * self.layers // 8

    @property
    def is_outer_or_third(self) -> bool:
        """Whether the layer is in the first or last eighth, or a third layer between them."""
        return self.is_outer or (self.layer - self.layers // 8) % 3 == 2

    @property
    def is_stack_of_experts(self) -> bool:
        """Whether the tensor is a stack of experts; bailingmoe3 also stacks other matrices."""
        shape = self.info.shape
        if len(shape) < 3 or shape[-3] == 1:
            return False
        return self.model.architecture != "bailingmoe3" or self.role.startswith("ffn_")


CONDITIONS: Mapping[str, Callable[[TensorRole], bool]] = {
    "70b": lambda at: at.model.is_70b,
    "8_experts": lambda at: at.model.experts == 8,
    "4_experts": lambda at: at.model.experts >= 4,
    "whole_blocks": lambda at: at.info.shape[-1] % 256 == 0,
    "stacked": lambda at: at.is_stack_of_experts,
    "falcon": lambda at: at.model.architecture == "falcon",
    "first_2": lambda at: at.layer < 2,
    "first_4": lambda at: at.layer < 4,
    "first_eighth": lambda at: at.layer < at.layers // 8,
    "first_sixteenth": lambda at: at.layer < at.layers // 16,
    "grouped_heads": lambda at: at.model.group >= 4,
    "first_tensors": lambda at: at.place < at.layers // 8,
    "outer_eighths": lambda at: at.is_outer,
    "outer_and_thirds": lambda at: at.is_outer_or_third,
    "imatrix": lambda at: at.weighted,
}


def adapt_to_images(
    target: Recipe | Encoding, metadata: Mapping[str, MetadataValue]
) -> Recipe | Encoding:
    """Return the recipe for a diffusion transformer that has the name of another recipe or a type.

    It is that of the patch of llama-quantize in city96/ComfyUI-GGUF (`tools/lcpp.patch`).
    The patch never quantizes the tensors that embed the inputs or make the outputs, nor tensors of
    more than two dimensions. Types without blocks, recipes of files, and those for other models do
    not change.
    """
    from weightctl.families.diffusion import find_diffusion_family  # few runs need it

    stated = metadata.get(ARCHITECTURE)
    family = None if stated is None else find_diffusion_family(stated.content)
    if family is None:
        return target
    first = RecipeLine(re.compile(family.kept), (), None)
    if isinstance(target, Recipe):
        if target.path:
            return target
        lines = [
            RecipeLine(re.compile(RECIPE_TABLE["image_parts"][part]), (), kind)
            for part, kind in RECIPE_TABLE["images"].get(target.name, ())
        ]
        return target._replace(lines=(first, *lines))
    if target.quantization is None:
        return target
    return Recipe(target.name, target.name, (first,), target.file_type)


class RecipeChoice(NamedTuple):
    """The encoding that a recipe chooses (None keeps it), and the line that decided."""

    encoding: Encoding | None
    line: str


def goes_by_role(
    recipe: Recipe, tensors: Sequence[TensorInfo], metadata: Mapping[str, MetadataValue]
) -> bool:
    """Whether a recipe can determine the roles of a model's tensors, or does not need them.

    Roles are determined from GGUF's names and metadata.
    """
    if all(not isinstance(line.tensors, str) for line in recipe.lines):
        return True
    return ARCHITECTURE in metadata and any(role(info.name) for info in tensors)


def list_unmatched(recipe: Recipe, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    """Yield a sentence for each pattern that is not found in any matrix's name."""
    names = [info.name for info in tensors if is_matrix_weight(info)]
    for line in recipe.lines:
        pattern = line.tensors
        if not isinstance(pattern, str) and not any(map(pattern.search, names)):
            yield f"{recipe.path}: no matrix's name matches `{pattern.pattern}`"


def choose(
    recipe: Recipe,
    tensors: Sequence[TensorInfo],
    metadata: Mapping[str, MetadataValue],
    *,
    weighted: bool = False,
    names: Mapping[str, str] | None = None,
) -> dict[str, RecipeChoice]:
    """Return what a recipe chooses for each matrix of a model, by the matrix's name.

    `tensors` are all tensors of the model, because their count affects the result. `names` maps
    names to GGUF's names if these differ; the patterns of a recipe are searched in the original
    names. Raises `ConversionError` if the recipe depends on roles and the model has no GGUF names.
    """
    known = {info.name: (names or {}).get(info.name, info.name) for info in tensors}
    if not goes_by_role(recipe, [_rename_tensor(info, known) for info in tensors], metadata):
        remedy = (
            "write `default` instead of `base`: `default` does not depend on names or metadata"
            if recipe.path
            else "if weightctl supports the model family, name the model's config.json with "
            "--config DIR (config in Python); for a single type, use "
            f"--quant {recipe.otherwise} (quant in Python); to choose types by name, use "
            "--tensor-type (tensor_types in Python) or a TOML file"
        )
        raise ConversionError(
            f"the recipe {recipe.name} needs GGUF's names and metadata, which this model does not "
            "have",
            hint=remedy,
        )
    if ARCHITECTURE in metadata:
        model = DescribedModel.of(metadata, known.values())
    else:
        model = DescribedModel("", 0, 0, 0, is_70b=False)
    return {
        place.info.name: _choice(recipe, place)
        for place in _places(tensors, known, model, weighted=weighted)
    }


def _rename_tensor(info: TensorInfo, known: Mapping[str, str]) -> TensorInfo:
    return info._replace(name=known[info.name])


def _choice(recipe: Recipe, place: TensorRole) -> RecipeChoice:
    line = next((line for line in recipe.lines if _is_for(line, place)), None)
    name = line.type if line else recipe.otherwise
    return RecipeChoice(ENCODINGS[name] if name else None, str(line) if line else OTHERWISE)


def _is_for(line: RecipeLine, place: TensorRole) -> bool:
    if not isinstance(line.tensors, str):
        return line.tensors.search(place.info.name) is not None
    if line.tensors not in {place.role, ""}:
        return False
    return all(
        CONDITIONS[condition.removeprefix("!")](place) is not condition.startswith("!")
        for condition in line.when
    )


def _places(
    tensors: Sequence[TensorInfo],
    known: Mapping[str, str],
    model: DescribedModel,
    *,
    weighted: bool,
) -> Iterator[TensorRole]:
    """Yield the matrices with their roles and layers, as llama.cpp counts them.

    The matrices are sorted by layer and name. The number of a value projection is its position
    among all value projections. The number of a part of the feed-forward network is determined in
    the same way, and its total is the number of layers; in a mixture of experts, the number is the
    one in its name.
    """
    ordered = sorted(tensors, key=lambda info: (_layer(known[info.name]), known[info.name]))
    roles = {info.name: role(known[info.name]) or "" for info in tensors}
    values = sum(each == "attn_v" for each in roles.values())
    has_output = "output" in roles.values()
    seen: dict[str, int] = {}
    for info in ordered:
        if not is_matrix_weight(_rename_tensor(info, known)):
            continue
        mine = roles[info.name]
        if mine == "token_embd" and not has_output:
            mine = "output"
        number = place = seen.get(mine, 0)
        seen[mine] = place + 1
        if mine.startswith("ffn_") and model.experts > 1:
            number = _layer(known[info.name])
        layers = values if mine == "attn_v" else model.layers
        yield TensorRole(info, mine, model, number, layers, weighted, place)


def _layer(name: str) -> int:
    number = layer(name)
    return -1 if number is None else number
