"""What the tensors of a header are to the model: weights, their parts, buffers, adapters."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.schemes.logical.adapters import Adapter, adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from weightctl.weights.info import Header, TensorInfo

__all__ = [
    "Adapter",
    "Quantized",
    "adapter",
    "find_quantized",
    "is_buffer",
    "is_optimizer_state",
    "parts",
]

# How the names of scales end. The table of what stands beside them is loaded where there are some.
MARKS = (
    ".scale", "_scale", "_scale_inv", ".scales", "_scales", ".scale_weight", ".SCB",
    ".weight.absmax", ".suh",
)  # fmt: skip
# No tensor that is read for what it says is larger.
_MAX_READ = 4096

# Tensors that models make themselves when they are built, or count while they are trained.
_BUFFERS = frozenset({
    "inv_freq", "original_inv_freq", "inv_timescales", "cos_cached", "sin_cached",
    "cos_sin_cache", "freqs_cis", "freqs_cos", "freqs_sin", "_float_tensor",
    "mask", "attn_mask", "attention_mask", "causal_mask", "masked_bias",
    "position_ids", "token_type_ids", "relative_position_index", "relative_coords_table",
    "running_mean", "running_var", "num_batches_tracked",
    "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod", "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod", "posterior_variance", "posterior_log_variance_clipped",
    "posterior_mean_coef1", "posterior_mean_coef2",
})  # fmt: skip
_GGUF_BUFFERS = frozenset({
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
})  # fmt: skip
# What the optimizers of torch keep for each parameter (the `state` of `state_dict()`).
_OPTIMIZER = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "grad_avg", "acc_delta", "mu_product", "row_var", "col_var", "variance", "step", "sum",
})  # fmt: skip
_STATE = ("state.", "optimizer.", "optim.")
_FREQUENCIES = ("rope.freqs", "rotary_emb.freqs")


class Quantized(NamedTuple):
    """A weight that is stored as several tensors: packed numbers, and what scales them.

    `name` and `shape` are those of the weight that they stand for, outermost dimension first.
    `scheme` is what people call the packing. `parts` are the stored tensors, the packed numbers
    first, and `nbytes` is what all of them fill.
    """

    name: str
    shape: tuple[int, ...]
    scheme: str
    parts: tuple[str, ...]
    nbytes: int

    @property
    def size(self) -> int:
        """The number of elements of the weight."""
        return prod(self.shape)

    @property
    def bits(self) -> float:
        """Stored bits for each element, scales included."""
        return 8 * self.nbytes / self.size


def find_quantized(
    header: Header, config: Mapping[str, Any], read: Callable[[str], bytes]
) -> dict[str, Quantized]:
    """Return the weights that are stored in parts, by name, in the order of their first parts.

    `config` is config.json's content, or empty. `read` gives the bytes of a small tensor in
    little-endian order and may raise `WeightctlError`. Where tensors do not fit together, they
    are no weight; nothing is raised for it.
    """
    tensors, extents, content = header.tensors, header.extents, _Contents(read)
    found: dict[str, Quantized] = {}
    part_of: dict[str, str] = {}
    if not (marks := _marks(tensors)):
        return found
    from weightctl.schemes.logical.schemes import lines

    for mark in marks:
        for scheme in lines(mark):
            stored = scheme.gather(tensors[mark], tensors, config, content)
            logical = scheme.layout(stored) if stored else None
            if stored is None or logical is None or not prod(logical.shape):
                continue
            name, own = stored.layer + scheme.weight, stored.names
            is_taken = name in found or (name in tensors and name not in own)
            if is_taken or not part_of.keys().isdisjoint(own):
                continue
            nbytes = sum([extents[part].nbytes for part in own])
            found[name] = Quantized(name, *logical, own, nbytes)
            part_of.update(dict.fromkeys(own, name))
            break
    order = dict.fromkeys(part_of[name] for name in tensors if name in part_of)
    return {name: found[name] for name in order}


def parts(header: Header) -> set[str]:
    """Return the tensors that only have a meaning together: numbers, and what scales them.

    Told from names and encodings alone, so that these may be tensors that `find_quantized` cannot
    make a weight of; what it finds is always among them.
    """
    tensors = header.tensors
    if not (marks := _marks(tensors)):
        return set()
    from weightctl.schemes.logical.schemes import lines

    return {
        part
        for mark in marks
        for scheme in lines(mark)
        if (stored := scheme.gather(tensors[mark], tensors, {}, _unread))
        for part in stored.names
    }


def _marks(names: Iterable[str]) -> list[str]:
    """Return the names that may be those of scales."""
    # Nearly all names end like this, and no scales do.
    return [name for name in names if not name.endswith(".weight") and name.endswith(MARKS)]


def _unread(_info: TensorInfo, _numbers: TensorInfo) -> None:
    return None


class _Contents:
    """What small tensors hold; of layers that differ in numbers alone, the first is read."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._known: dict[object, bytes] = {}

    def __call__(self, info: TensorInfo, numbers: TensorInfo) -> bytes | None:
        # Mixtures of experts have tens of thousands of these, and the same in all of them.
        name = info.name.encode("utf-8", "surrogatepass").translate(None, b"0123456789")
        alike = (name, info.shape, info.encoding.name, numbers.shape)
        raw = self._known.get(alike)
        if raw is None:
            try:
                if info.nbytes > _MAX_READ:
                    return None
                raw = self._read(info.name)
            except WeightctlError:
                return None
            if len(raw) != info.nbytes:
                return None
            self._known[alike] = raw
        return raw


def is_optimizer_state(info: TensorInfo) -> bool:
    """Whether a tensor is what an optimizer keeps of a parameter, as AdamW its `exp_avg`."""
    name = info.name
    return name.rpartition(".")[2] in _OPTIMIZER and (name.startswith(_STATE) or ".state." in name)


def is_buffer(info: TensorInfo) -> bool:
    """Whether a tensor is no trained weight: caches of positions, masks, schedules, statistics.

    Batch norm's running statistics are among them, as they are in torch: a model needs them, but
    no optimizer trains them, and the parameter counts that people publish leave them out. So is
    what an optimizer keeps for itself.
    """
    name = info.name
    if name.endswith(".weight"):
        return name in _GGUF_BUFFERS
    last = name.rpartition(".")[2]
    if last == "bias":
        # GPT-2's causal mask has the name that a bias of its attention would have.
        size = info.shape[-1] if len(info.shape) == 4 else 0
        return info.shape == (1, 1, size, size) and name.endswith(("attn.bias", "attention.bias"))
    if last in _OPTIMIZER:
        return is_optimizer_state(info)
    return last in _BUFFERS or (last == "freqs" and name.endswith(_FREQUENCIES))
