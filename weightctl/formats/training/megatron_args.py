"""The arguments of Megatron-LM that its checkpoints store, as far as the shapes depend on them.

Source: `megatron/training/arguments.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from weightctl.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

_HINT = (
    "save the checkpoint with its arguments (without --no-save-args or a changed `args`), or "
    "convert it with Megatron-LM's tools/checkpoint/convert.py"
)
_LARGEST = 1 << 32


class MegatronArgs(NamedTuple):
    """Sizes of a model and of its parallelism.

    `groups` is the number of KV heads. `vocabulary` is the number of tokens without padding, None
    if it is not stated. `unsupported` says why the tensors have no names of Hugging Face, or is
    empty.
    """

    layers: int
    hidden: int
    heads: int
    groups: int
    head_size: int
    tensor_ranks: int
    pipeline_ranks: int
    expert_ranks: int
    expert_tensor_ranks: int
    experts: int
    vocabulary: int | None
    is_tied: bool
    unsupported: str


def read_args(
    path: str, metadata: Mapping[str, MetadataValue], prefix: str = "args."
) -> MegatronArgs:
    """Read the arguments from the values of a file; raises `FormatError` if some are missing."""
    stated: dict[str, Any] = {
        key[len(prefix) :]: None if value.content == "None" else value.content
        for key, value in metadata.items()
        if key.startswith(prefix)
    }
    sizes = ["num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size",
             "pipeline_model_parallel_size"]  # fmt: skip
    flags = ["swiglu", "group_query_attention", "untie_embeddings_and_output_weights"]
    if stated.get("group_query_attention") is True:
        sizes.append("num_query_groups")
    missing = [f"`{name}`" for name in sizes if not _is_size(stated.get(name))]
    missing += [f"`{name}`" for name in flags if not isinstance(stated.get(name), bool)]
    if missing:
        has_none = "it stores no arguments (`args`) of Megatron-LM" if not stated else ""
        text = "the tensors of the ranks cannot be joined: " + (
            has_none or f"its arguments (`args`) do not state {', '.join(missing)}"
        )
        raise FormatError(path, None, text, hint=_HINT)
    heads, hidden = stated["num_attention_heads"], stated["hidden_size"]
    vocabulary = stated.get("vocab_size")
    return MegatronArgs(
        stated["num_layers"],
        hidden,
        heads,
        stated["num_query_groups"] if stated["group_query_attention"] else heads,
        _size_of(stated, "kv_channels", hidden // heads),
        stated["tensor_model_parallel_size"],
        stated["pipeline_model_parallel_size"],
        _size_of(stated, "expert_model_parallel_size", 1),
        _size_of(stated, "expert_tensor_parallel_size", stated["tensor_model_parallel_size"]),
        _size_of(stated, "num_experts", 0),
        vocabulary if _is_size(vocabulary) else None,
        not stated["untie_embeddings_and_output_weights"],
        _find_unsupported(stated),
    )


def _is_size(content: Any) -> TypeGuard[int]:
    return type(content) is int and 0 < content < _LARGEST


def _size_of(stated: Mapping[str, Any], name: str, usual: int) -> int:
    size = stated.get(name)
    return size if _is_size(size) else usual


def _find_unsupported(stated: Mapping[str, Any]) -> str:
    """Return why a model is not of a family that is mapped; empty if it can be."""
    if not stated["swiglu"]:
        return "its MLP is not gated (`swiglu` is False)"
    if stated.get("normalization", "RMSNorm") != "RMSNorm":
        return f"`normalization` is {stated['normalization']}"
    for name in ("apply_layernorm_1p", "multi_latent_attention", "attention_output_gate"):
        if stated.get(name):
            return f"`{name}` is set"
    if stated.get("position_embedding_type", "rope") not in {"rope", "yarn"}:
        return f"`position_embedding_type` is {stated['position_embedding_type']}"
    return ""
