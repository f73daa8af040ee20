"""How a GGUF file was made from its source: the recipe, and metadata that it does not explain."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from weightctl.dtype import ENCODINGS
from weightctl.errors import WeightctlError
from weightctl.plan.cast import cast
from weightctl.plan.file_types import find_file_type, read_file_type
from weightctl.plan.recipe_lines import LLAMA_RECIPES
from weightctl.schemes import WRITTEN
from weightctl.schemes.arrays.trees import Dequantized, resolve
from weightctl.schemes.layout import ConstantPart
from weightctl.schemes.naming import ACTIVATIONS
from weightctl.schemes.scheme import SchemeChoice, load_written
from weightctl.text.untyped import is_sequence
from weightctl.verify.proof.verdicts import Verdict
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.write.convert import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from weightctl.plan.plan import Plan
    from weightctl.verify.proof.verdicts import TensorProof
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo
    from weightctl.weights.metadata import MetadataValue
    from weightctl.weights.tree import Checkpoint

    # A stored tensor, and what a conversion makes.
    Part: TypeAlias = tuple[ReadableTensor, ReadableTensor]

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
    header: Header,
    tensors: Sequence[TensorProof],
    find_plan: Callable[[], Plan | None],
    *,
    is_weighted: bool,
) -> Making:
    """Return how a checkpoint was made, as far as its bytes tell.

    Tensors are not read. The recipe and the additions are known for GGUF files whose source can be
    converted to GGUF; `find_plan` returns the plan for that. `is_weighted` says that blocks were
    reproduced only with the importance matrix.
    """
    through = next((each.through for each in tensors if each.through), "")
    importance = is_weighted or _find_importance(tensors, header)
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
    return _plan(source, "model.gguf")


def _plan(source: Checkpoint, out: str, **how: Any) -> Plan | None:
    try:
        return convert(source, out, dry_run=True, **how).plan
    except WeightctlError:
        return None


def find_parts(tensors: Mapping[str, ReadableTensor], source: Checkpoint) -> dict[str, list[Part]]:
    """Return the stored tensors of weights of schemes, with those that a conversion makes.

    They are by the names of the weights. Weights that a conversion of the source stores in another
    way have none. Tensors are not read.
    """
    found: dict[str, list[Part]] = {}
    plans: dict[str, Plan | None] = {}
    for name, tensor in tensors.items():
        weight = resolve(tensor)
        if not isinstance(weight, DerivedTensor) or not isinstance(weight.step, Dequantized):
            continue
        stored = [each for each in weight.inputs if not each.info.name.endswith(ACTIVATIONS)]
        for choice in _list_choices(weight.info, [each.info for each in stored]):
            if choice not in plans:
                plans[choice] = _plan(source, "model", quant=choice)
            plan = plans[choice]
            parts = [
                (each, made)
                for each in stored
                if plan is not None and (made := find_planned(plan, each.info.name)) is not None
            ]
            if parts and len(parts) == len(stored) and all(a.info == b.info for a, b in parts):
                found[name] = parts
                break
    return found


def _list_choices(weight: TensorInfo, stored: Sequence[TensorInfo]) -> Iterator[str]:
    """Yield the types of model directories that store a weight in tensors of such shapes."""
    layer = weight.name.removesuffix("weight").removesuffix(".")
    shapes = {info.name.removeprefix(layer): info.shape for info in stored}
    for record in WRITTEN.values():
        scheme = load_written(record)
        for group, is_other in product(
            scheme.groups or (scheme.defaults.group,), (False, True)[: 1 + scheme.has_zeros]
        ):
            options = scheme.defaults._replace(group=group)
            options = options._replace(symmetric=options.symmetric != is_other)
            if scheme.of_experts or scheme.refuse(weight.shape, options):
                continue
            made = scheme.encode(weight.shape, options, ENCODINGS["F16"])
            # The text in a constant tensor depends on the type of the source.
            if shapes.keys() == {part.ending for part in made.parts} and all(
                isinstance(part, ConstantPart) or made.shape_of(part) == shapes[part.ending]
                for part in made.parts
            ):
                yield str(SchemeChoice(scheme, options))


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
