"""What each type of each tensor would cost, and which tensors get one type together."""

from __future__ import annotations

from math import exp, log
from statistics import median
from typing import TYPE_CHECKING

from weightctl.budget.assignment import TypeChoice
from weightctl.budget.sensitivity import Variant, measure_divergences
from weightctl.budget.texts import shorten
from weightctl.errors import ConversionError
from weightctl.system.phases import begin_phase

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from weightctl.budget.space import SearchedTensor, SearchSpace
    from weightctl.verify.run.parts import Running
    from weightctl.verify.run.prompt import Prompt

_IN_LAYERS = "layers."
# The operations that measuring sensitivities may take: one to two minutes on two cores. Reading
# and decoding the weights of each layer for each of its tensors takes about as long.
_WORK = 5e12
# The most types of a tensor that are measured by running the model, and the tokens it needs for
# more than one.
_MOST_MEASURED, _MANY_TOKENS = 2, 512
_LEAST_TOKENS = 32


def estimate_costs(
    space: SearchSpace, running: Running, prompt: Prompt, bits: float
) -> dict[tuple[str, str], float]:
    """Return the divergence that each type of each tensor causes alone, in nats.

    The keys are names of tensors and types. The model runs with each tensor in one or two types of
    about `bits` bits. The divergence of a small error is proportional to the squared error, so that
    the errors of the other types give their divergences. Tensors that the model does not use get
    the median of the others.
    """
    count, tokens = _share_work(space, running)
    variants = _list_variants(space, running, bits, count)
    measured = measure_divergences(running, shorten(prompt, tokens), variants)
    begin_phase("measuring the errors of types")
    errors = {each.name: space.measure_errors(each) for each in space.tensors}
    factors: dict[str, float] = {}
    for each in space.tensors:
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


def _share_work(space: SearchSpace, running: Running) -> tuple[int, int]:
    """Return how many types of each tensor to measure, and on how many tokens."""
    inside = sum(
        tensor.info.size
        for module, tensor in running.checkpoint.tensors.items()
        if module.startswith(_IN_LAYERS)
    )
    outside = running.vocabulary * running.width
    # On average, half of the layers run for a tensor.
    for_token = 2 * (inside / 2 + outside) * len(space.tensors)
    tokens = int(_WORK / for_token / _MOST_MEASURED)
    if tokens >= _MANY_TOKENS:
        return _MOST_MEASURED, tokens
    return 1, max(_LEAST_TOKENS, int(_WORK / for_token))


def _list_variants(space: SearchSpace, running: Running, bits: float, count: int) -> list[Variant]:
    """Return a variant for each tensor and each type that is measured."""
    modules: dict[str, list[str]] = {}
    for module, stored in running.checkpoint.stored.items():
        modules.setdefault(stored, []).append(module)
    wanted = {
        each.name: [kind for kind in each.list_nearest(bits) if kind != each.stored]
        for each in space.tensors
    }
    found: list[Variant] = []
    for kind in dict.fromkeys(kind for kinds in wanted.values() for kind in kinds[:count]):
        names = [name for name, kinds in wanted.items() if kind in kinds[:count]]
        view = space.view(dict.fromkeys(names, kind))
        for name in names:
            changed = {
                module: view.tensors[module]
                for module in modules.get(name, ())
                if module in view.tensors
            }
            if changed:
                found.append(Variant((name, kind), changed))
    return found


def group_choices(
    space: SearchSpace,
    costs: Mapping[tuple[str, str], float],
    together: re.Pattern[str] | None,
    alignment: int,
) -> tuple[list[list[SearchedTensor]], list[list[TypeChoice]]]:
    """Return groups of tensors that get one type, and the choices of each group.

    Tensors of one layer whose names contain the pattern `together` are a group, and so are those
    that the output joins; every other tensor is a group of its own. Bytes are rounded up to
    multiples of the alignment. Raises `ConversionError` if tensors of a group have no type in
    common.
    """
    groups: dict[object, list[SearchedTensor]] = {}
    for each in space.tensors:
        is_joined = together is not None and together.search(each.name) is not None
        number, joined = space.join(each.name)
        key = number if is_joined and number is not None else joined
        groups.setdefault(key, []).append(each)
    choices: list[list[TypeChoice]] = []
    for group in groups.values():
        names = [kind for kind in group[0].nbytes if all(kind in each.nbytes for each in group[1:])]
        if not names:
            first, second = group[0].name, group[1].name
            raise ConversionError(
                f"`{first}` and `{second}` must have the same type, but no type fits both",
                hint="change --same-type, or add types with --types",
            )
        choices.append([
            TypeChoice(
                name,
                sum(-(-each.nbytes[name] // alignment) * alignment for each in group),
                sum(costs[each.name, name] for each in group),
            )
            for name in names
        ])  # fmt: skip
    return list(groups.values()), choices
