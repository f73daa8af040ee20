"""Notes to read before a conversion is carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.formats.huggingface import companions
from weightctl.plan.cast import is_unfit_for_llama_cpp
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.plan.plan import Item, Plan
    from weightctl.write.targets import Target

__all__ = ["notes_on"]

# How many tensors are named before the rest is folded.
_WORST = 5
_LONGEST = 80


def notes_on(plan: Plan, where: Target) -> list[str]:
    """Return the notes to read before a plan is carried out."""
    return [*plan.source.header.notes, *plan.notes, *_advice(plan, where)]


def _advice(plan: Plan, where: Target) -> Iterator[str]:
    # Of tensors that cannot be read the refusal speaks.
    known = {*plan.metadata, *plan.unread}
    lost = [(name, leaf.kind) for name, leaf in plan.unkept.items() if name not in known]
    if lost:
        named = [f"{_short(name)} ({_short(kind)})" for name, kind in lost]
        yield f"not kept: {join_names(named, _WORST)}"
    if plan.zero_nonfinite and not any(_holds_no_nan(item) for item in plan.items):
        yield (
            "--nonfinite zero applies to block types only, and no tensor becomes one: NaN stays NaN"
        )
    count = sum(1 for item in plan.items if is_unfit_for_llama_cpp(plan, item))
    if count:
        yield (
            f"{count} vectors are not F32, the only type that llama.cpp uses for vectors; to "
            "convert them, use --dtype or --quant (dtype or quant in Python)"
        )
    if plan.source.header.missing:
        yield "the output lacks the tensors of the missing parts, so it does not load as a model"
        return
    if plan.format == "gguf" and "general.architecture" not in plan.metadata:
        yield (
            "names and metadata are not translated to GGUF's (`general.architecture` and others), "
            "so llama.cpp does not load the output; to translate them, put the config.json of a "
            "supported model family beside the input, and do not use --names keep"
        )
    files = plan.source.header.files
    if where.file_name is not None and not plan.documents and not companions(files):
        why = "there is no config.json beside the input"
        if "general.architecture" in plan.metadata:
            why = "GGUF's names and metadata are kept without a config.json"
        yield f"{why}, so transformers does not load the output"


def _holds_no_nan(item: Item) -> bool:
    return item.info.encoding.quantization is not None and not item.is_copy


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
