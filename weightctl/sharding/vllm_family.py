"""Finds vLLM's model class for a checkpoint, and refuses checkpoints that it cannot load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import ShardingError
from weightctl.families.matching import OF_TOKENS
from weightctl.families.steps import TRANSPOSED
from weightctl.schemes.matching import list_scheme_tensors
from weightctl.sharding.vllm_names import RELEASE, VLLM_FAMILIES
from weightctl.text.untyped import is_list
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.sharding.plan import ShardPlan
    from weightctl.sharding.vllm_names import VllmFamily

_ENCODINGS = ("F32", "F16", "BF16")
_RANKS = 'use --layout ranks (layout="ranks" in Python), which supports this checkpoint'
_REPACKED = (
    "the vLLM layout does not support quantized weights, because vLLM repacks them when it loads a "
    "model, and weightctl only copies bytes"
)
_PLAIN = (
    'convert the checkpoint first: `weightctl convert IN OUT --dtype bf16` (dtype="bf16" in Python)'
)


def family_of(plan: ShardPlan, checkpoint: RecognizedModel) -> VllmFamily:
    """Return vLLM's model class for a checkpoint.

    Raises `ShardingError` if the checkpoint's bytes cannot be split for this class unchanged, and
    `ArchitectureError` if the checkpoint is not a complete model.
    """
    _refuse_grid(plan)
    if checkpoint.convention == "gguf":
        raise ShardingError(
            f"{checkpoint.where} is a GGUF file, whose tensor names and row order differ from "
            "those that vLLM expects",
            hint=_PLAIN,
        )
    if plan.format != "safetensors":
        raise ShardingError(
            f"vLLM reads sharded checkpoints only from safetensors, not from {plan.format}",
            hint='use --to safetensors (to="safetensors" in Python), or leave it out',
        )
    _refuse_quantized(plan, checkpoint)
    family = _family(checkpoint)
    checkpoint.check()
    _refuse_odd(checkpoint, family)
    return family


def _refuse_grid(plan: ShardPlan) -> None:
    for name, size, what in (
        ("ep", plan.grid.ep, "expert parallelism"),
        ("pp", plan.grid.pp, "pipeline stages"),
    ):
        if size > 1:
            raise ShardingError(
                f"the vLLM layout does not support {what}",
                hint=f"leave out --{name} ({name} in Python), or use --layout ranks "
                '(layout="ranks" in Python)',
            )


def _refuse_quantized(plan: ShardPlan, checkpoint: RecognizedModel) -> None:
    header = plan.source.header
    packed = list_scheme_tensors(header)
    if packed:
        subject = f"`{next(iter(packed))}` is a part of a quantized weight"
        raise ShardingError(f"{subject}: {_REPACKED}", hint=_PLAIN)
    if checkpoint.document.get("quantization_config"):
        subject = f"{checkpoint.where} has a `quantization_config`"
        raise ShardingError(f"{subject}: {_REPACKED}", hint=_PLAIN)
    for name in checkpoint.stored.values():
        info = header.tensors.get(name)
        if info is not None and info.encoding.name not in _ENCODINGS:
            raise ShardingError(
                f"`{name}` is stored as {info.encoding}, but vLLM computes in "
                f"{', '.join(_ENCODINGS)}",
                hint=_PLAIN,
            )


def _family(checkpoint: RecognizedModel) -> VllmFamily:
    """Return vLLM's model class; raises `ShardingError` if `architectures` has another class."""
    family = checkpoint.family
    if any(each.change is TRANSPOSED for each in family.tensors(checkpoint.config)):
        raise ShardingError(
            f"the vllm layout does not support {family.name}: vLLM expects its matrices "
            "transposed, but the writer of shards copies bytes unchanged",
            hint=_RANKS,
        )
    vllm = VLLM_FAMILIES.get(family.name)
    if vllm is None:
        raise ShardingError(f"the vLLM layout does not support {family.name}", hint=_RANKS)
    classes = checkpoint.document.get("architectures")
    if not is_list(classes) or classes[:1] not in [[each] for each in vllm.classes]:
        raise ShardingError(
            f"{checkpoint.where} states the `architectures` {classes!r}, but vLLM's "
            f"layout of {family.name} is for {' or '.join(vllm.classes)}",
            hint=_RANKS,
        )
    return vllm


def _refuse_odd(checkpoint: RecognizedModel, family: VllmFamily) -> None:
    """Raise `ShardingError` if vLLM would ignore a bias, or expects another number of rows."""
    header, tokens = header_of(checkpoint.tree), checkpoint.fields["vocabulary"]
    for names in checkpoint.family.tensors(checkpoint.config):
        stored = checkpoint.stored[names.module]
        if family.plain_output and names.line.module.endswith(".o") and names.kind == "bias":
            raise ShardingError(
                f"vLLM {RELEASE} does not have `{stored}` and would compute without it", hint=_RANKS
            )
        rows, *_ = header.tensors[header.aliases.get(stored, stored)].shape
        if names.module in OF_TOKENS and rows != tokens:
            raise ShardingError(
                f"`{stored}` has {rows} rows, but vLLM expects {tokens}, the vocabulary "
                f"size in {checkpoint.where}",
                hint=_RANKS,
            )
