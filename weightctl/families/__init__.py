"""Model families as data: names of tensors, config keys, shapes, and how parts are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.recognition import recognize

__all__ = ["FAMILIES", "RecognizedModel", "recognize"]

# A family is a line here, its name and the `Family`, and a module: `families/llama.py` has the
# names of its tensors, the keys of its config, and the blocks that it is made of. Nothing else
# knows of it. Those that came later stand behind the first ten, in the order of their names.
FAMILIES: dict[str, str] = {
    "llama": "weightctl.families.llama:FAMILY",
    "bert": "weightctl.families.bert:FAMILY",
    "gpt2": "weightctl.families.gpt2:FAMILY",
    "gemma2": "weightctl.families.gemma2:FAMILY",
    "gemma3": "weightctl.families.gemma3:FAMILY",
    "qwen2": "weightctl.families.qwen2:FAMILY",
    "qwen3": "weightctl.families.qwen3:FAMILY",
    "phi3": "weightctl.families.phi3:FAMILY",
    "mixtral": "weightctl.families.mixtral:FAMILY",
    "qwen3moe": "weightctl.families.qwen3moe:FAMILY",
    "arcee": "weightctl.families.arcee:FAMILY",
    "bloom": "weightctl.families.bloom:FAMILY",
    "camembert": "weightctl.families.camembert:FAMILY",
    "cohere": "weightctl.families.cohere:FAMILY",
    "cohere2": "weightctl.families.cohere2:FAMILY",
    "deepseek_v2": "weightctl.families.deepseek_v2:FAMILY",
    "deepseek_v3": "weightctl.families.deepseek_v3:FAMILY",
    "distilbert": "weightctl.families.distilbert:FAMILY",
    "dots1": "weightctl.families.dots1:FAMILY",
    "ernie4_5": "weightctl.families.ernie4_5:FAMILY",
    "ernie4_5_moe": "weightctl.families.ernie4_5_moe:FAMILY",
    "eurobert": "weightctl.families.eurobert:FAMILY",
    "exaone4": "weightctl.families.exaone4:FAMILY",
    "exaone_moe": "weightctl.families.exaone_moe:FAMILY",
    "falcon": "weightctl.families.falcon:FAMILY",
    "gemma": "weightctl.families.gemma:FAMILY",
    "glm": "weightctl.families.glm:FAMILY",
    "glm4": "weightctl.families.glm4:FAMILY",
    "glm4_moe": "weightctl.families.glm4_moe:FAMILY",
    "gpt_oss": "weightctl.families.gpt_oss:FAMILY",
    "gptj": "weightctl.families.gptj:FAMILY",
    "gptneox": "weightctl.families.gptneox:FAMILY",
    "granite": "weightctl.families.granite:FAMILY",
    "granitemoe": "weightctl.families.granitemoe:FAMILY",
    "granitemoeshared": "weightctl.families.granitemoeshared:FAMILY",
    "jais2": "weightctl.families.jais2:FAMILY",
    "minimax_m2": "weightctl.families.minimax_m2:FAMILY",
    "modernbert": "weightctl.families.modernbert:FAMILY",
    "mpt": "weightctl.families.mpt:FAMILY",
    "nemotron": "weightctl.families.nemotron:FAMILY",
    "nomic_bert": "weightctl.families.nomic_bert:FAMILY",
    "olmo": "weightctl.families.olmo:FAMILY",
    "olmo2": "weightctl.families.olmo2:FAMILY",
    "olmo3": "weightctl.families.olmo3:FAMILY",
    "olmoe": "weightctl.families.olmoe:FAMILY",
    "phi2": "weightctl.families.phi2:FAMILY",
    "qwen2moe": "weightctl.families.qwen2moe:FAMILY",
    "roberta": "weightctl.families.roberta:FAMILY",
    "seed_oss": "weightctl.families.seed_oss:FAMILY",
    "smollm3": "weightctl.families.smollm3:FAMILY",
    "stablelm": "weightctl.families.stablelm:FAMILY",
    "starcoder": "weightctl.families.starcoder:FAMILY",
    "starcoder2": "weightctl.families.starcoder2:FAMILY",
    "xlm_roberta": "weightctl.families.xlm_roberta:FAMILY",
}

_NAMES = {
    "RecognizedModel": "weightctl.families.checkpoint:RecognizedModel",
    "recognize": "weightctl.families.recognition:recognize",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
