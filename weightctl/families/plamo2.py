"""PLaMo 2: a state space model or attention in each layer, then an MLP, with norms around both.

Names and keys: llama.cpp's `models/plamo2.cpp` and `conversion/plamo.py`, since transformers does
not have the type. Attention is full in each layer that has it, as llama.cpp and vLLM compute it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, with_keys
from weightctl.families.config_values import HEADS, SIZE, Exactly, WholeNumber
from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.layers import ONES
from weightctl.families.rope import standard
from weightctl.families.steps import MINUS_EXP, PLUS_ONE, plus
from weightctl.families.usual_names import DECODER, adapt, line
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_LAYER = "model.layers.layers.{}."
_MIXER = f"{_LAYER}mixer."
# The number of elements of the vector that steps are computed from is at least this.
_LEAST_RANK = 64
_STEP = WholeNumber(1, 1 << 16)
_BARE = {"gguf": "", "hugging_face": ""}
_BARE_OUTSIDE = {"hugging_face": ""}
_WITHOUT_STATES = "models without state space models are not supported"
_NO_GROUPS = "llama.cpp has no groups of heads for PLaMo 2"


class _HeadCount(NamedTuple):
    """The number of query heads; a list has it for each layer, and 0 for layers without attention.

    It is written as one number: llama.cpp only reads the size of RoPE if that of layer 0 is not 0.
    """

    def read(self, content: object) -> Any:
        """Return the number; raises `ValueError` if it differs between layers with attention."""
        if not is_sequence(content):
            return HEADS.read(content)
        found = {HEADS.read(each) for each in content if each != 0}
        if len(found) != 1:
            raise ValueError("must have one number of query heads for all layers with attention")
        return found.pop()

    @property
    def gguf_type(self) -> str:
        """The type of a list of numbers; one number is written in the type of an element."""
        return f"array[{HEADS.gguf_type}]"

    def write(self, value: Any) -> Any:
        return HEADS.write(value)


def _mark(step: int, layers: int) -> tuple[bool, ...]:
    """Return which layers have attention: one of each `step`, or the last if there are few."""
    if layers <= step // 2:
        return tuple(layer == layers - 1 for layer in range(layers))
    return tuple(layer % step == step // 2 for layer in range(layers))


def _mark_attention(fields: Fields) -> tuple[bool, ...]:
    return _mark(fields["mamba_step"], fields["layers"])


def _find_step(fields: Fields) -> int:
    given = tuple(fields["attention_layers"])
    for step in range(2, 2 * len(given) + 2):
        if _mark(step, len(given)) == given:
            return step
    if all(given):
        return 1
    raise ValueError("has layers with attention at other than regular distances")


def _find_inner(fields: Fields) -> int:
    return int(fields["ssm_heads"] * fields["head_dim"])


def _find_rank(fields: Fields) -> int:
    return max(_LEAST_RANK, int(fields["hidden"] // 16))


def _list_keys() -> tuple[Key, ...]:
    usual = with_keys(
        DECODER_KEYS,
        Key(field="heads", kind=_HeadCount(), default=32, gguf="{arch}.attention.head_count",
            hugging_face="num_attention_heads"),
        Key(field="head_dim", kind=SIZE, default=128, gguf="{arch}.attention.key_length",
            hugging_face="hidden_size_per_head"),
        without=("activation",),
    )  # fmt: skip
    made = hybrid_keys(
        usual,
        "ssm_layers",
        Key(field="mamba_step", kind=_STEP, default=2, gguf_default=_find_step,
            hugging_face="mamba_step", written=True, is_in_weights=True),
        Key(field="attention_layers", kind=ONES, default=_mark_attention),
    )  # fmt: skip
    return (
        *made,
        Key(field="has_states", kind=Exactly(True, _WITHOUT_STATES), default=True,
            gguf_default=True, hugging_face="mamba_enabled"),
        Key(field="ssm_length", kind=SIZE, default=4, gguf="{arch}.ssm.conv_kernel",
            hugging_face="mamba_d_conv"),
        Key(field="ssm_state", kind=SIZE, default=64, gguf="{arch}.ssm.state_size",
            hugging_face="mamba_d_state"),
        Key(field="ssm_heads", kind=HEADS, default=64, gguf="{arch}.ssm.time_step_rank",
            hugging_face="mamba_num_heads"),
        Key(field="ssm_inner", kind=SIZE, default=_find_inner, gguf="{arch}.ssm.inner_size"),
        Key(field="no_groups", kind=Exactly(0, _NO_GROUPS), default=0, gguf_default=0,
            gguf="{arch}.ssm.group_count", written=True),
        Key(field="ssm_rank", kind=SIZE, default=_find_rank, gguf_default=_find_rank),
    )  # fmt: skip


def _list_lines() -> tuple[Name, ...]:
    def part(name: str, **more: Any) -> dict[str, Any]:
        return {"hugging_face": f"{_MIXER}{name}", **more}

    def norm(name: str, change: Any, **more: Any) -> dict[str, Any]:
        return {"hugging_face": f"{_LAYER}{name}", "change": change, **more}

    states = {
        "ssm.inputs.paired": part("in_proj", bias=False),
        "ssm.kernel.paired": part("conv1d", bias=False),
        "ssm.selection.paired": part("bcdt_proj"),
        "ssm.step.paired": part("dt_proj", bias=False),
        "ssm.step_bias": part("dt_bias"),
        "ssm.step_norm": part("dt_norm_weight", ends=_BARE),
        "ssm.b_norm": part("B_norm_weight", ends=_BARE),
        "ssm.c_norm": part("C_norm_weight", ends=_BARE),
        "ssm.rates": part("A_log", change=MINUS_EXP),
        "ssm.skip": part("D", change=None),
        "ssm.outputs": part("out_proj", bias=False),
    }
    attention = {
        **{f"attention.{name}": None for name in "qkv"},
        "attention.qkv": part("qkv_proj", bias=False),
        "attention.q_norm.apart": part("q_weight", ends=_BARE_OUTSIDE),
        "attention.k_norm.apart": part("k_weight", ends=_BARE_OUTSIDE),
        "attention.o": part("o_proj", bias=False),
    }
    names = adapt(
        DECODER,
        {
            "attention_norm": norm("pre_mixer_norm", PLUS_ONE),
            **attention,
            **states,
            "post_attention_norm": norm(
                "post_mixer_norm", plus(1 / 5, "post_attention_offset"), ends={"gguf": ""}
            ),
            "mlp_norm": norm("pre_mlp_norm", PLUS_ONE),
            "mlp.gate": None,
            "mlp.up": None,
            "mlp.gate_up": {"hugging_face": f"{_LAYER}mlp.gate_up_proj"},
            "mlp.down": {"hugging_face": f"{_LAYER}mlp.down_proj"},
            "post_mlp_norm": norm(
                "post_mlp_norm", plus(1 / 5**1.5, "post_mlp_offset"), ends={"gguf": ""}
            ),
        },
    )
    last = line("norm", change=PLUS_ONE)
    return hybrid_lines(
        tuple(last if each.module == "norm" else each for each in names),
        {"attention": "attention_layers"},
    )


def _check(fields: Fields) -> Fields:
    check_kv_heads(fields)
    heads, inner = fields["ssm_heads"], fields["ssm_inner"]
    if inner % heads:
        raise ValueError(f"{inner} channels cannot be divided evenly among {heads} SSM heads")
    return check_decoder(fields)


_NOTES = """
transformers does not have `plamo2`. weightctl reads the names that llama.cpp's converter reads. The
tests compare it with llama.cpp, and with a definition of the model in torch. Its tokenizer,
`tokenizer.jsonl`, is converted in both directions; llama.cpp leaves out a U+FEFF at the beginning
of a text. weightctl writes the number of query heads to GGUF as one number. llama.cpp's converter
writes a number for each layer, 0 in layers without attention; weightctl reads both.
"""

FAMILY = Family(
    name="plamo2",
    notes=_NOTES,
    model_types={
        "plamo2": ModelType(
            class_name="Plamo2ForCausalLM",
            defaults={"intermediate": 13312, "kv_heads": 4, "tied": True},
        )
    },
    blocks={
        "ssm_version": "plamo2",
        "ssm_bias": False,
        "ssm_kernel_bias": False,
        "fused_qkv": True,
        "fused_gate_up": True,
        "qk_norm": "apart_rms",
        "post_norms": True,
    },
    names=_list_lines(),
    keys=_list_keys(),
    standard=standard,
    checked=_check,
)
