"""The usual lines and keys of state space models (SSM): Mamba and Mamba-2.

Names and keys: transformers' `modeling_mamba.py` and `modeling_mamba2.py`; llama.cpp's
`models/mamba-base.cpp` and `conversion/mamba.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, quotient, with_keys
from weightctl.families.config_values import HEADS, SIZE, Exactly, WholeNumber, show_value
from weightctl.families.decoder_keys import DECODER_KEYS, rename_keys
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

# Close to the largest number of float32: no step is limited by more.
_LARGEST = 3.4e38
_UNLIMITED = "llama.cpp does not limit the steps of state space models"
_BIAS = "llama.cpp has no biases in the projections of state space models"
_KERNEL_BIAS = "llama.cpp needs the bias of the convolution"

# The roles of a Mamba-2, with their names in Hugging Face's convention after that of the part.
_MAMBA2 = {
    "inputs": "in_proj", "kernel": "conv1d", "rates": "A_log", "skip": "D", "step_bias": "dt_bias",
    "norm": "norm", "outputs": "out_proj",
}  # fmt: skip


def mamba2_roles(prefix: str) -> dict[str, dict[str, Any]]:
    """Return the roles of a Mamba-2, with the fields of their lines that differ.

    `prefix` is what their names begin with in Hugging Face's convention.
    """
    return {f"ssm.{role}": {"hugging_face": prefix + name} for role, name in _MAMBA2.items()}


class Unlimited(NamedTuple):
    """The range of the steps, which must be that from 0 to infinity."""

    def read(self, content: object) -> None:
        """Return None, because there is no limit."""
        if content is None:
            return
        if not is_sequence(content) or len(content) != 2 or content[0] != 0:
            raise ValueError(f"is {show_value(content)}: {_UNLIMITED}")
        most = content[1]
        if is_object(most):  # as transformers writes numbers that JSON does not have
            most = most.get("__float__")
        if most != "Infinity" and not (isinstance(most, int | float) and most > _LARGEST):
            raise ValueError(f"is {show_value(content)}: {_UNLIMITED}")

    @property
    def gguf_type(self) -> str:
        """The type of a list of floats."""
        return "array[f32]"

    def write(self, value: Any) -> None:
        """Return None: the key is not written."""
        del value


def _find_inner(fields: Fields) -> int:
    return int(fields["ssm_expand"] * fields["hidden"])


def find_expansion(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, None if it does: its inner size is not 2 x."""
    if fields["ssm_inner"] == 2 * fields["hidden"]:
        return None
    return (
        f"its state space models have {fields['ssm_inner']} channels; the number must be twice the "
        f"hidden size, {2 * fields['hidden']}"
    )


def _expansion_keys(prefix: str, inner: str = "") -> tuple[Key, ...]:
    return (
        Key(field="ssm_inner", kind=SIZE, gguf="{arch}.ssm.inner_size"),
        # Falcon Mamba 7B states 16, and a width of 2 x: only the width counts.
        Key(field="ssm_expand", kind=WholeNumber(1, 64), default=2, is_in_weights=True,
            gguf_default=quotient("ssm_inner", "hidden"), hugging_face=f"{prefix}expand"),
        Key(field="ssm_inner", kind=SIZE, default=_find_inner, hugging_face=inner),
    )  # fmt: skip


def _usual_keys(length: str, state: str, biases: tuple[str, str]) -> tuple[Key, ...]:
    bias, kernel_bias = biases
    return (
        Key(field="ssm_length", kind=SIZE, default=4, gguf="{arch}.ssm.conv_kernel",
            hugging_face=length),
        Key(field="ssm_state", kind=SIZE, default=128, gguf="{arch}.ssm.state_size",
            hugging_face=state),
        Key(field="ssm_bias", kind=Exactly(False, _BIAS), default=False, gguf_default=False,
            hugging_face=bias),
        Key(field="ssm_kernel_bias", kind=Exactly(True, _KERNEL_BIAS), default=True,
            gguf_default=True, hugging_face=kernel_bias),
    )  # fmt: skip


# The names of `ssm_length`, `ssm_state` and the biases in config.json: in models that are state
# space models alone, and in others.
_PLAIN = ("conv_kernel", "state_size", ("use_bias", "use_conv_bias"))
_HYBRID = ("mamba_d_conv", "mamba_d_state", ("mamba_proj_bias", "mamba_conv_bias"))


def mamba_keys(*, hybrid: bool = False) -> tuple[Key, ...]:
    """Return the keys of a Mamba; those of a hybrid model have other names in config.json.

    config.json of a model without attention states the number of channels, too.
    """
    inner = "" if hybrid else "intermediate_size"
    rank = "mamba_dt_rank" if hybrid else "time_step_rank"
    return (
        *_usual_keys(*(_HYBRID if hybrid else _PLAIN)),
        *_expansion_keys("mamba_" if hybrid else "", inner),
        Key(
            field="ssm_rank",
            kind=SIZE,
            default=_find_rank,
            gguf="{arch}.ssm.time_step_rank",
            hugging_face=rank,
            written=True,
        ),
    )


def mamba2_keys(*, hybrid: bool = False) -> tuple[Key, ...]:
    """Return the keys of a Mamba-2; those of a hybrid model have other names in config.json."""
    heads, size, groups = (
        ("mamba_n_heads", "mamba_d_head", "mamba_n_groups")
        if hybrid
        else ("num_heads", "head_dim", "n_groups")
    )
    return (
        *_usual_keys(*(_HYBRID if hybrid else _PLAIN)),
        *_expansion_keys("mamba_" if hybrid else ""),
        Key(field="ssm_heads", kind=HEADS, default=128, gguf="{arch}.ssm.time_step_rank",
            hugging_face=heads),
        Key(field="ssm_size", kind=SIZE, default=quotient("ssm_inner", "ssm_heads"),
            gguf_default=quotient("ssm_inner", "ssm_heads"), hugging_face=size, written=True),
        Key(field="ssm_groups", kind=HEADS, default=1, gguf="{arch}.ssm.group_count",
            hugging_face=groups),
        Key(field="step_limit", kind=Unlimited(), default=None, gguf_default=None,
            hugging_face="time_step_limit", written=False),
    )  # fmt: skip


def check_heads_of_states(fields: Fields) -> None:
    """Raise `ValueError` if the heads of a Mamba-2 do not fit its channels and groups."""
    heads, inner, groups = fields["ssm_heads"], fields["ssm_inner"], fields["ssm_groups"]
    size = fields.get("ssm_size") or inner // heads
    if heads * size != inner:
        raise ValueError(f"{heads} SSM heads of size {size} do not have {inner} channels")
    if heads % groups:
        raise ValueError(f"{heads} SSM heads cannot be divided evenly among {groups} groups")


def check_heads(fields: Fields) -> Fields:
    """Return the fields; raises `ValueError` if the heads of a Mamba-2 do not fit."""
    check_heads_of_states(fields)
    return fields


def _find_rank(fields: Fields) -> int:
    return int(-(-fields["hidden"] // 16))


def without_auto(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json without the sizes for which it has the word `auto`."""
    return {key: value for key, value in document.items() if value != "auto"}


# For models without attention and MLPs: GGUF states that there are no heads.
_NO_HEADS = (
    Key(field="no_heads", kind=WholeNumber(0, 0), gguf_default=0, default=0,
        gguf="{arch}.attention.head_count", written=True),
    Key(field="no_inner", kind=WholeNumber(0, 0), gguf_default=0, default=0,
        gguf="{arch}.feed_forward_length", written=True),
)  # fmt: skip
# The keys that these models share with other decoders.
_KEPT = ("vocabulary", "context", "hidden", "layers", "norm_epsilon", "activation", "tied")
ONLY_STATES_KEYS = (
    *with_keys(
        rename_keys(
            tuple(key for key in DECODER_KEYS if key.field in _KEPT),
            {"norm_epsilon": "layer_norm_epsilon"},
        ),
        # The models have no limit; llama.cpp's converter states this number.
        Key(field="context", kind=SIZE, default=1 << 20, gguf="{arch}.context_length"),
        Key(field="activation", kind=Exactly("silu", "llama.cpp uses SiLU"), default="silu",
            gguf_default="silu", hugging_face="hidden_act"),
    ),
    *_NO_HEADS,
)  # fmt: skip
# The keys of hybrid models.
HYBRID_MAMBA2_KEYS = mamba2_keys(hybrid=True)
HYBRID_MAMBA_KEYS = mamba_keys(hybrid=True)
