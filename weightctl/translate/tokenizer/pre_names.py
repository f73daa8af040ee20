"""GGUF's names of pre-tokenizers (`tokenizer.ggml.pre`), which split text before BPE.

Names, regular expressions and the other effects of a name are those of llama.cpp's
`llama-vocab.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from weightctl.translate.tokenizer import regexes as r
from weightctl.translate.tokenizer.rules import BYTES, PreTokenizerRule

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Pre:
    """The meaning of a name: the rule, and llama.cpp's defaults for other keys.

    `ignores_merges`: a piece that is a token is not split further. `adds_bos` and `adds_separator`
    apply if `add_bos_token` or `add_sep_token` is missing. `parts_marks`: llama.cpp separates
    letters from the combining marks that follow them, which the rule keeps together. `joins_case`:
    llama.cpp does not separate a capital letter from the small letter before it, as the rule does.
    """

    rule: PreTokenizerRule
    ignores_merges: bool = False
    adds_bos: bool = False
    adds_separator: bool = False
    parts_marks: bool = False
    joins_case: bool = False


def _bytes(*steps: str) -> PreTokenizerRule:
    return PreTokenizerRule((*steps, BYTES))


def _compose_rule(*steps: str) -> PreTokenizerRule:
    return PreTokenizerRule((*steps, BYTES), is_composed=True)


_LLAMA_3 = Pre(_bytes(r.LLAMA_3), ignores_merges=True, adds_bos=True)
_GLM = Pre(_bytes(r.LLAMA_3), ignores_merges=True)
_CL100K = Pre(_bytes(r.LLAMA_3))
_GPT_2 = Pre(_bytes(r.GPT_2))
_NEOX = Pre(_compose_rule(r.GPT_2))
_ROBERTA = Pre(_bytes(r.GPT_2), adds_separator=True)
_STARCODER = Pre(_bytes(r.DIGIT, r.GPT_2))
_COHERE = Pre(_compose_rule(r.DIGIT, r.GPT_2))
_QWEN_2 = Pre(_compose_rule(r.QWEN_2))
_CASELESS = Pre(_bytes(r.QWEN_2))
_DEEPSEEK_3 = Pre(_bytes(r.UP_TO_THREE_DIGITS, r.CJK, r.DEEPSEEK_3))
_BLOOM = Pre(_bytes(r.BLOOM))
_GPT_4O = Pre(_bytes(r.GPT_4O), parts_marks=True)
_BAILING = Pre(_bytes(r.BAILING))
_COHERE_2 = Pre(_bytes(r.THOUSANDS, r.GPT_4O))

# If a rule has several names, the first one is written.
PRES: dict[str, Pre] = {
    "gpt-2": _GPT_2,
    "llama-bpe": _LLAMA_3,
    "qwen2": _QWEN_2,
    "qwen35": Pre(_bytes(r.QWEN_35)),
    "smollm": _STARCODER,
    "deepseek-llm": Pre(
        _bytes(
            r.NEWLINE, r.DEEPSEEK_LATIN, r.DEEPSEEK_PUNCTUATION, r"\s+$", r.DEEPSEEK_CJK, r.DIGIT
        )
    ),
    "deepseek-coder": Pre(_bytes(r.NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", r.DEEPSEEK_CJK, r.DIGIT)),
    "deepseek-v3": _DEEPSEEK_3,
    "deepseek-r1-qwen": _CASELESS,
    "tekken": Pre(_bytes(r.TEKKEN), ignores_merges=True, adds_bos=True, parts_marks=True),
    "gpt-4o": _GPT_4O,
    "dbrx": _CL100K,
    "glm4": _GLM,
    "command-r": _COHERE,
    "starcoder": _STARCODER,
    "refact": _STARCODER,
    "olmo": _NEOX,
    "mpt": _NEOX,
    "roberta-bpe": _ROBERTA,
    "falcon": Pre(
        PreTokenizerRule((r.PUNCTUATION_FALCON, r.GPT_2, BYTES, r.ANY_DIGITS, r.THREE_DIGITS)),
    ),
    "bloom": _BLOOM,
    "viking": Pre(_bytes(r.BLOOM, r.DIGIT)),
    "tiny_aya": _COHERE_2,
    "bailingmoe": _BAILING,
    "superbpe": Pre(_bytes(r.ANY_DIGITS, r.BEFORE_THOUSANDS)),
    "seed-coder": Pre(_bytes(r.SEED_CODER)),
    "exaone-moe": Pre(_bytes(r.EXAONE)),
    "minicpm5": Pre(_bytes(r.UP_TO_THREE_DIGITS, r.MINICPM_5), ignores_merges=True),
    "jais-2": Pre(_bytes(r.JAIS_2)),
    "youtu": Pre(_bytes(r.YOUTU_CJK, r.YOUTU), ignores_merges=True),
    "afmoe": Pre(_bytes(r.ALL_THOUSANDS, r.AFMOE_CJK, r.DEEPSEEK_3)),
    "kimi-k2": Pre(_bytes(r.KIMI), parts_marks=True, joins_case=True),
    "laguna": Pre(_bytes(r.PARAGRAPHS, r.QWEN_2)),
    "ufakzeka": Pre(_bytes(r.UFAKZEKA)),
    "spark2_5": Pre(_bytes(r.UP_TO_THREE_DIGITS, r.CJK, r.SPARK, r.DIGIT)),
    "granite-embed-multi-97m": Pre(_bytes(r.GPT_4O), ignores_merges=True),
    **dict.fromkeys(
        (
            "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
            "jina-v5-nano",
        ),
        _LLAMA_3,
    ),
    **dict.fromkeys(
        (
            "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
            "mellum", "modern-bert", "exaone4", "jais", "trillion", "granite-docling",
        ),
        _GPT_2,
    ),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code"), _ROBERTA),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b", "mellum2"), _STARCODER),
    **dict.fromkeys(("kormo", "f2llmv2", "megrez"), _QWEN_2),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), _CASELESS),
    **dict.fromkeys(("smaug-bpe", "chatglm-bpe"), _CL100K),
    "glm5": _GLM,
    **dict.fromkeys(("hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_3),
    **dict.fromkeys(("poro-chat", "gpt3-finnish"), _BLOOM),
    **dict.fromkeys(("llama4", "kanana2", "talkie", "minimax-m2"), _GPT_4O),
    **dict.fromkeys(("bailingmoe2", "llada-moe"), _BAILING),
    "cohere2moe": _COHERE_2,
    "default": Pre(_bytes(r.PUNCTUATION, r.GPT_2_SHORT, r.ANY_DIGITS, r.THREE_DIGITS)),
}  # fmt: skip
# The name that llama.cpp uses if a file has no name.
DEFAULT = "default"


def names_of(rule: PreTokenizerRule) -> Iterator[str]:
    """Yield GGUF's names for a rule, exact matches first.

    llama.cpp does not normalize text for byte-level BPE, so a rule that differs only in the
    normalization has the name too.
    """
    yield from (name for name, pre in PRES.items() if pre.rule == rule)
    yield from (
        name for name, pre in PRES.items() if pre.rule.steps == rule.steps and pre.rule != rule
    )


def find_nearest(rule: PreTokenizerRule) -> tuple[str, list[str], list[str]]:
    """Return the name whose rule is most like another one.

    Also return the steps that the other rule has and this one lacks, and those that only this one
    has.
    """

    def likeness(pre: Pre) -> tuple[int, float]:
        shared = len({*pre.rule.steps} & {*rule.steps})
        first, second = "\n".join(pre.rule.steps), "\n".join(rule.steps)
        return shared, SequenceMatcher(None, first, second, autojunk=False).ratio()

    name = max(PRES, key=lambda each: likeness(PRES[each]))
    own, other = rule.steps, PRES[name].rule.steps
    return (
        name,
        [step for step in own if step not in other],
        [step for step in other if step not in own],
    )
