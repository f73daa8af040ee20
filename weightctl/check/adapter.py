"""Rules for LoRA adapters: adapter_config.json against the stored matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.adapters.reading import list_wrong_scales, parse_name
from weightctl.check.rules import JsonChange, RuleFinding
from weightctl.text.untyped import is_list
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.check.model import CheckedModel

_CONFIG = "adapter_config.json"
_MOST_NAMED = 3
# Settings with which the shapes of matrices depend on more than the rank.
_OTHER_SHAPES = ("rank_pattern", "target_parameters", "use_bdlora", "use_qalora")


def find_wrong_rank(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find a rank in adapter_config.json that the stored matrices do not have."""
    document, ranks = _read_config(model), sorted({*_list_ranks(model).values()})
    rank = document.get("r")
    if not ranks or ranks == [rank] or any(document.get(key) for key in _OTHER_SHAPES):
        return
    shown = ", ".join(map(str, ranks[:_MOST_NAMED])) + (", ..." if ranks[_MOST_NAMED:] else "")
    text = f"is {rank}, and the matrices have the rank {shown}"
    right = JsonChange(model.locate(_CONFIG), ("r",), ranks[0])
    yield model.report(_CONFIG, "r", text, changes=[right] if len(ranks) == 1 else ())


def find_wrong_scales(model: CheckedModel) -> Iterator[RuleFinding]:
    for key, problem in list_wrong_scales(_read_config(model)):
        yield model.report(_CONFIG, key, problem)


def find_unmatched_modules(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find target modules of adapter_config.json that no stored matrix is for."""
    modules, targets = [*_list_ranks(model)], _list_targets(model)
    absent = [each for each in targets if not any(_is_target(name, each) for name in modules)]
    if modules and absent:
        text = f"has modules without matrices: {join_names(sorted(absent), _MOST_NAMED)}"
        yield model.report(_CONFIG, "target_modules", text)


def find_untargeted_modules(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find stored matrices of modules that are not target modules."""
    targets = _list_targets(model)
    others = [
        name for name in _list_ranks(model) if not any(_is_target(name, each) for each in targets)
    ]
    if targets and others:
        text = f"lacks modules that have matrices: {join_names(others, _MOST_NAMED)}"
        yield model.report(_CONFIG, "target_modules", text)


def find_no_base(model: CheckedModel) -> Iterator[RuleFinding]:
    """Find an adapter that does not name the model it is for."""
    document = _read_config(model)
    if document and not document.get("base_model_name_or_path"):
        text = "is missing, so programs do not know the model that the adapter is for"
        yield model.report(_CONFIG, "base_model_name_or_path", text)


def _read_config(model: CheckedModel) -> Mapping[str, Any]:
    """Return adapter_config.json of a LoRA adapter, or an empty mapping."""
    document = model.document(_CONFIG) or {}
    return document if document.get("peft_type", "LORA") == "LORA" else {}


def _list_ranks(model: CheckedModel) -> dict[str, int]:
    """Return the rank of each pair of matrices, by the name of its module."""
    if model.header is None or not _read_config(model):
        return {}
    found: dict[str, int] = {}
    for name, info in model.header.tensors.items():
        part = parse_name(name)
        if part.part == "first" and len(info.shape) > 1:
            found[part.module] = info.shape[0]
    return found


def _list_targets(model: CheckedModel) -> list[str]:
    """Return the names of target modules; empty if they are a pattern or `all-linear`."""
    document = _read_config(model)
    targets: Any = document.get("target_modules")
    if not is_list(targets) or document.get("target_parameters"):
        return []
    return [each for each in targets if isinstance(each, str)]


def _is_target(module: str, target: str) -> bool:
    return module == target or module.endswith(f".{target}")
