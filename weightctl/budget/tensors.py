"""The tensors that a search chooses types for, and what each type would cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import TYPE_CHECKING

from weightctl.budget.assignment import TypeChoice
from weightctl.budget.errors_by_type import measure_errors
from weightctl.budget.sensitivity import Variant, measure_divergences
from weightctl.budget.texts import shorten
from weightctl.budget.view import view_plan
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.families.names import layer
from weightctl.plan.cast import fit_encoding
from weightctl.plan.recipes import OTHERWISE
from weightctl.plan.type_rules import BY_RULE
from weightctl.system.phases import begin_phase

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping, Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item, Plan
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

__all__ = ["SearchedTensor", "estimate_costs", "group_choices", "list_candidates"]

# The operations that measuring sensitivities may take: one to two minutes on two cores. Reading
# and decoding the weights of each layer for each of its tensors takes about as long.
_WORK = 5e12
# The most types of a tensor that are measured by running the model, and the tokens it needs for
# more than one.
_MOST_MEASURED, _MANY_TOKENS = 2, 512
_LEAST_TOKENS = 32


@dataclass(frozen=True)
class SearchedTensor:
    """A tensor that a type is chosen for, with the types that its rows fit."""

    item: Item
    types: tuple[Encoding, ...]

    @property
    def name(self) -> str:
        """The name of the tensor in the output."""
        return self.item.info.name

    def count_bytes(self, encoding: Encoding, alignment: int) -> int:
        """Return the bytes of the tensor in a type, up to the next multiple of the alignment."""
        return -(-encoding.nbytes(self.item.info.shape) // alignment) * alignment

    def list_nearest(self, bits: float) -> list[Encoding]:
        """Return the types, those with about so many bits for each weight first."""
        return sorted(self.types, key=lambda each: abs(8 * each.size / each.block - bits))


def list_candidates(
    plan: Plan, types: Sequence[Encoding], in_place: Sequence[Encoding] = ()
) -> list[SearchedTensor]:
    """Return the matrices that the recipe of a plan chose no type for, with the types they can get.

    If the blocks of some types do not divide the rows, these types are replaced by those of
    `in_place` that do; without any, each one by llama.cpp's substitute for it. Raises
    `ConversionError` if there is not one such matrix, or if a type needs an importance matrix.
    """
    found = [
        SearchedTensor(item, _fit_types(types, in_place, item.info.shape))
        for item in plan.items
        if item.line == OTHERWISE
    ]
    if not found:
        raise _explain_nothing(plan)
    for candidate in found:
        for each in candidate.types:
            if each.needs_importance and candidate.item.importance is None:
                raise ConversionError(
                    f"{each} needs an importance matrix with an entry for `{candidate.name}`",
                    hint="use --imatrix FILE (imatrix in Python), or leave the type out of --types",
                )
    return found


def _fit_types(
    types: Sequence[Encoding], in_place: Sequence[Encoding], shape: tuple[int, ...]
) -> tuple[Encoding, ...]:
    fitting = [each for each in types if each.fits(shape)]
    others = [each for each in in_place if each.fits(shape)]
    if len(fitting) == len(types) or not others:
        return tuple(dict.fromkeys(fit_encoding(each, shape) for each in types))
    return tuple(dict.fromkeys([*others, *fitting]))


def _explain_nothing(plan: Plan) -> ConversionError:
    """Return the error for a plan without a matrix to quantize."""
    files = plan.source.header.files
    where = f"{files[0]}: " if files else ""
    ruled = next((item for item in plan.items if item.line.startswith(BY_RULE)), None)
    if ruled is not None:
        return ConversionError(
            f"{where}no tensor can be quantized to meet the budget: --tensor-type chooses the type "
            f"of every matrix, for example of `{ruled.info.name}`",
            hint="leave out --tensor-type for some tensors, or use --quant (quant in Python) "
            "instead of a budget",
        )
    return ConversionError(
        f"{where}no tensor can be quantized to meet the budget",
        hint="a budget needs matrices whose names end in `.weight`, other than norms and routers; "
        "for a model without them, use --dtype (dtype in Python)",
    )


def estimate_costs(
    plan: Plan, candidates: Sequence[SearchedTensor], running: Running, prompt: Prompt, bits: float
) -> dict[tuple[str, str], float]:
    """Return the divergence that each type of each tensor causes alone, in nats.

    The keys are names of tensors and types. The model runs with each tensor in one or two types of
    about `bits` bits. The divergence of a small error is proportional to the squared error, so that
    the errors of the other types give their divergences. Tensors that the model does not use get
    the median of the others.
    """
    count, tokens = _share_work(plan, candidates, running)
    variants = _list_variants(plan, candidates, running, bits, count)
    measured = measure_divergences(running, shorten(prompt, tokens), variants)
    begin_phase("measuring the errors of types")
    errors = {each.name: measure_errors(plan, each.item, each.types) for each in candidates}
    factors: dict[str, float] = {}
    for each in candidates:
        pairs = [
            (measured[each.name, kind], error)
            for kind, error in errors[each.name].items()
            if (each.name, kind) in measured
        ]
        logs = [log(divergence / error) for divergence, error in pairs if divergence and error]
        if logs:
            factors[each.name] = exp(sum(logs) / len(logs))
    usual = median(factors.values()) if factors else 1.0
    return {
        # Rounding hides differences between machines, so that they choose the same types.
        (name, kind): float(f"{factors.get(name, usual) * error:.4g}")
        for name, by_type in errors.items()
        for kind, error in by_type.items()
    }


def _share_work(
    plan: Plan, candidates: Sequence[SearchedTensor], running: Running
) -> tuple[int, int]:
    """Return how many types of each tensor to measure, and on how many tokens."""
    inside = sum(item.info.size for item in plan.items if layer(item.info.name) is not None)
    outside = running.vocabulary * running.width
    # On average, half of the layers run for a tensor.
    for_token = 2 * (inside / 2 + outside) * len(candidates)
    tokens = int(_WORK / for_token / _MOST_MEASURED)
    if tokens >= _MANY_TOKENS:
        return _MOST_MEASURED, tokens
    return 1, max(_LEAST_TOKENS, int(_WORK / for_token))


def _list_variants(
    plan: Plan, candidates: Sequence[SearchedTensor], running: Running, bits: float, count: int
) -> list[Variant]:
    """Return a variant for each tensor and each type that is measured."""
    modules: dict[str, list[str]] = {}
    for module, stored in running.checkpoint.stored.items():
        modules.setdefault(stored, []).append(module)
    wanted = {
        each.name: [kind for kind in each.list_nearest(bits) if kind != each.item.source.encoding]
        for each in candidates
    }
    found: list[Variant] = []
    for kind in dict.fromkeys(kind for kinds in wanted.values() for kind in kinds[:count]):
        names = [name for name, kinds in wanted.items() if kind in kinds[:count]]
        view = view_plan(plan, dict.fromkeys(names, kind))
        for name in names:
            changed = {
                module: view.tensors[module]
                for module in modules.get(name, ())
                if module in view.tensors
            }
            if changed:
                found.append(Variant((name, kind.name), changed))
    return found


def group_choices(
    candidates: Sequence[SearchedTensor],
    costs: Mapping[tuple[str, str], float],
    together: re.Pattern[str] | None,
    alignment: int,
) -> tuple[list[list[SearchedTensor]], list[list[TypeChoice]]]:
    """Return groups of tensors that get one type, and the choices of each group.

    Tensors of one layer whose names contain the pattern `together` are a group; every other tensor
    is a group of its own. Raises `ConversionError` if tensors of a group have no type in common.
    """
    groups: dict[object, list[SearchedTensor]] = {}
    for each in candidates:
        is_joined = together is not None and together.search(each.name) is not None
        number = layer(each.name)
        key = number if is_joined and number is not None else each.name
        groups.setdefault(key, []).append(each)
    choices: list[list[TypeChoice]] = []
    for group in groups.values():
        names = [
            kind.name for kind in group[0].types if all(kind in each.types for each in group[1:])
        ]
        if not names:
            first, second = group[0].name, group[1].name
            raise ConversionError(
                f"`{first}` and `{second}` must have the same type, but no type fits both",
                hint="change --same-type, or add types with --types",
            )
        choices.append([
            TypeChoice(
                name,
                sum(each.count_bytes(ENCODINGS[name], alignment) for each in group),
                sum(costs[each.name, name] for each in group),
            )
            for name in names
        ])  # fmt: skip
    return list(groups.values()), choices
