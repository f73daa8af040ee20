"""How a GGUF file was made from its source: the recipe, and metadata that it does not explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.errors import WeightctlError
from weightctl.plan.cast import cast
from weightctl.plan.file_types import find_file_type, read_file_type
from weightctl.plan.recipe_lines import LLAMA_RECIPES
from weightctl.text.untyped import is_sequence
from weightctl.verify.proof.verdicts import Verdict
from weightctl.weights.derived import tensor_of
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.plan.plan import Plan
    from weightctl.verify.proof.verdicts import TensorProof
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

# Keys that state how a file was made or stored, and not what the model is.
_OF_THE_FILE = (
    "general.file_type", "general.quantization_version", "general.alignment", "quantize.", "split.",
    "weightctl.",
)  # fmt: skip
_IMPORTANCE = "quantize.imatrix."
_WEIGHTED = {name for name, each in ENCODINGS.items() if each.takes_importance}


class Making(NamedTuple):
    """The fields of `ProofFigures` that say how a checkpoint was made."""

    recipe: str = ""
    uses_importance: bool | None = None
    through: str = ""
    additions: tuple[str, ...] = ()


def find_making(
    header: Header, tensors: Sequence[TensorProof], find_plan: Callable[[], Plan | None]
) -> Making:
    """Return how a checkpoint was made, as far as its bytes tell.

    Tensors are not read. The recipe and the additions are known for GGUF files whose source can be
    converted to GGUF; `find_plan` returns the plan for that.
    """
    through = next((each.through for each in tensors if each.through), "")
    importance = _find_importance(tensors, header)
    plan = find_plan() if header.format == "gguf" else None
    if plan is None:
        return Making(uses_importance=importance, through=through)
    return Making(
        recipe=_find_recipe(plan, header, weighted=bool(importance)),
        uses_importance=importance,
        through=through,
        additions=tuple(_list_additions(header.metadata, plan.metadata)),
    )


def plan_to_gguf(source: Checkpoint) -> Plan | None:
    """Return the plan to convert a checkpoint to GGUF; None if that is not possible.

    Tensors are not read.
    """
    try:
        return convert(source, "model.gguf", dry_run=True).plan
    except WeightctlError:
        return None


def find_planned(plan: Plan, name: str) -> ReadableTensor | None:
    """Return what a plan computes an output tensor from; None if it does not have the tensor."""
    names = [item.source.name for item in plan.items if item.info.name == name]
    return tensor_of(plan.source, names[0]) if names else None


def _find_importance(tensors: Sequence[TensorProof], header: Header) -> bool | None:
    """Return whether an importance matrix was used; None if no tensor tells."""
    weighted = [each for each in tensors if each.encoding in _WEIGHTED and each.blocks]
    if any(each.verdict in {Verdict.PROVED, Verdict.BOUNDED} for each in weighted):
        return True
    if not weighted:
        return None
    return any(key.startswith(_IMPORTANCE) for key in header.metadata)


def _find_recipe(plan: Plan, header: Header, *, weighted: bool) -> str:
    """Return the first recipe or type that gives the types of all tensors; empty if none does."""
    types = {name: info.encoding for name, info in header.tensors.items()}
    used = {each.name for each in types.values() if each.quantization is not None}
    number = read_file_type(header.metadata)
    stated = None if number is None else find_file_type(number)
    names = [] if stated is None else [stated.name]
    names += [
        name
        for name, recipe in LLAMA_RECIPES.items()
        if used and used <= {each.name for each in recipe.encodings}
    ]
    names += used if len(used) == 1 else []
    for name in dict.fromkeys(names):
        target = LLAMA_RECIPES.get(name) or ENCODINGS[name]
        try:
            made = cast(plan, target, requantize=True, weighted=weighted)
        except WeightctlError:
            continue
        if {each.info.name: each.info.encoding for each in made.items} == types:
            return name
    return ""


def _list_additions(
    own: Mapping[str, MetadataValue], made: Mapping[str, MetadataValue]
) -> Iterator[str]:
    """Yield the keys that a conversion of the source does not write, or with another value."""
    for key, value in own.items():
        if key.startswith(_OF_THE_FILE):
            continue
        wanted = made.get(key)
        if wanted is None or not _are_equal(value.content, wanted.content):
            yield key


def _are_equal(one: Any, other: Any) -> bool:
    if is_sequence(one) and is_sequence(other):
        return len(one) == len(other) and all(map(_are_equal, one[:], other[:]))
    return bool(one == other)
