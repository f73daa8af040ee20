"""Model families as data: tensor names, config keys, shapes, and how ranks divide the weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from weightctl.system.registry import load, load_on_use

if TYPE_CHECKING:
    from weightctl.families.added import add_family
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.family import Family
    from weightctl.families.recognition import recognize

__all__ = ["FAMILIES", "FamilyLine", "RecognizedModel", "add_family", "recognize"]


class FamilyLine(NamedTuple):
    """An entry of the table of families, by which only the family that is needed is imported.

    - `source`: the file in `families/tables/` that describes the family, or the Python module whose
      `FAMILY` it is.
    - `gguf`: the value of GGUF's `general.architecture`, which several families can share.
    - `model_types`: the values of `model_type` in config.json. If several families have the same
      one, the `model_type` of the text model (`text_config`) decides between them.
    - `family`: the family itself, if its file was added (`families/added.py`).
    """

    source: str
    gguf: str
    model_types: tuple[str, ...]
    family: Family | None = None

    def load(self) -> Family:
        """Read or import the family."""
        if self.family is not None:
            return self.family
        if self.source.endswith(".toml"):
            return _read_table(self.source)
        return cast("Family", load(f"{self.source}:FAMILY"))


@cache
def _read_table(name: str) -> Family:
    from weightctl.families.family_files import read_family

    return read_family(Path(__file__).parent / "tables" / name, lambda base: FAMILIES[base].load())


# To add a family, add a line here and a file in `tables/`: it lists the names of its tensors, the
# keys of its config, and the blocks of its models. No other code names the family. The first
# ten lines are the oldest families; the others are in alphabetical order.
FAMILIES: dict[str, FamilyLine] = {
    "llama": FamilyLine(
        "llama.toml",
        "llama",
        ("llama", "mistral", "internlm3", "idefics3", "smolvlm", "llava", "internvl", "voxtral"),
    ),
    "bert": FamilyLine("bert.toml", "bert", ("bert",)),
    "gpt2": FamilyLine("gpt2.toml", "gpt2", ("gpt2",)),
    "gemma2": FamilyLine("gemma2.toml", "gemma2", ("gemma2",)),
    "gemma3": FamilyLine("gemma3.toml", "gemma3", ("gemma3_text", "gemma3")),
    "plamo2": FamilyLine("weightctl.families.plamo2", "plamo2", ("plamo2",)),
    "qwen2": FamilyLine(
        "qwen2.toml", "qwen2", ("qwen2", "internvl", "qwen2_audio", "audioflamingo3")
    ),
    "qwen3": FamilyLine("qwen3.toml", "qwen3", ("qwen3", "internvl")),
    "phi3": FamilyLine("phi3.toml", "phi3", ("phi3",)),
    "mixtral": FamilyLine("mixtral.toml", "llama", ("mixtral",)),
    "qwen3moe": FamilyLine("qwen3moe.toml", "qwen3moe", ("qwen3_moe", "internvl")),
    "afmoe": FamilyLine("afmoe.toml", "afmoe", ("afmoe",)),
    "apertus": FamilyLine("weightctl.families.apertus", "apertus", ("apertus",)),
    "arcee": FamilyLine("arcee.toml", "arcee", ("arcee",)),
    "bailingmoe": FamilyLine("bailingmoe.toml", "bailingmoe", ("bailing_moe",)),
    "bamba": FamilyLine("bamba.toml", "granitehybrid", ("bamba",)),
    "bitnet": FamilyLine("bitnet.toml", "bitnet", ("bitnet",)),
    "bloom": FamilyLine("bloom.toml", "bloom", ("bloom",)),
    "camembert": FamilyLine("camembert.toml", "bert", ("camembert",)),
    "cohere": FamilyLine("cohere.toml", "command-r", ("cohere",)),
    "cohere2": FamilyLine("cohere2.toml", "cohere2", ("cohere2",)),
    "deepseek_v2": FamilyLine("deepseek_v2.toml", "deepseek2", ("deepseek_v2",)),
    "deepseek_v3": FamilyLine("deepseek_v3.toml", "deepseek2", ("deepseek_v3", "kimi_k2")),
    "deepseek_v32": FamilyLine("deepseek_v32.toml", "deepseek32", ("deepseek_v32",)),
    "deepseek_v4": FamilyLine("weightctl.families.deepseek_v4", "deepseek4", ("deepseek_v4",)),
    "distilbert": FamilyLine("distilbert.toml", "bert", ("distilbert",)),
    "dots1": FamilyLine("dots1.toml", "dots1", ("dots1",)),
    "ernie4_5": FamilyLine("ernie4_5.toml", "ernie4_5", ("ernie4_5",)),
    "ernie4_5_moe": FamilyLine("ernie4_5_moe.toml", "ernie4_5-moe", ("ernie4_5_moe",)),
    "eurobert": FamilyLine("eurobert.toml", "eurobert", ("eurobert",)),
    "exaone4": FamilyLine("exaone4.toml", "exaone4", ("exaone4",)),
    "exaone_moe": FamilyLine("exaone_moe.toml", "exaone-moe", ("exaone_moe",)),
    "falcon": FamilyLine("weightctl.families.falcon", "falcon", ("falcon",)),
    "falcon_h1": FamilyLine("weightctl.families.falcon_h1", "falcon-h1", ("falcon_h1",)),
    "falcon_mamba": FamilyLine("falcon_mamba.toml", "mamba", ("falcon_mamba",)),
    "flex_olmo": FamilyLine("flex_olmo.toml", "flex_olmo", ("flex_olmo",)),
    "gemma": FamilyLine("gemma.toml", "gemma", ("gemma",)),
    "gemma3n": FamilyLine("weightctl.families.gemma3n", "gemma3n", ("gemma3n_text", "gemma3n")),
    "gemma4": FamilyLine(
        "weightctl.families.gemma4",
        "gemma4",
        ("gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified"),
    ),
    "glm": FamilyLine("glm.toml", "chatglm", ("glm",)),
    "glm4": FamilyLine("glm4.toml", "glm4", ("glm4",)),
    "glm4_moe": FamilyLine("glm4_moe.toml", "glm4moe", ("glm4_moe",)),
    "glm_moe_dsa": FamilyLine("glm_moe_dsa.toml", "glm-dsa", ("glm_moe_dsa",)),
    "gpt_oss": FamilyLine("gpt_oss.toml", "gpt-oss", ("gpt_oss",)),
    "gptj": FamilyLine("gptj.toml", "gptj", ("gptj",)),
    "gptneox": FamilyLine("gptneox.toml", "gptneox", ("gpt_neox",)),
    "granite": FamilyLine("granite.toml", "granite", ("granite",)),
    "granite4": FamilyLine("granite4.toml", "granite", ("granitemoehybrid",)),
    "granitehybrid": FamilyLine("granitehybrid.toml", "granitehybrid", ("granitemoehybrid",)),
    "granitemoe": FamilyLine("granitemoe.toml", "granitemoe", ("granitemoe",)),
    "granitemoeshared": FamilyLine("granitemoeshared.toml", "granitemoe", ("granitemoeshared",)),
    "helium": FamilyLine("helium.toml", "helium", ("helium",)),
    "hunyuan_dense": FamilyLine("hunyuan_dense.toml", "hunyuan-dense", ("hunyuan_v1_dense",)),
    "hunyuan_moe": FamilyLine("hunyuan_moe.toml", "hunyuan-moe", ("hunyuan_v1_moe",)),
    "jais2": FamilyLine("jais2.toml", "jais2", ("jais2",)),
    "jamba": FamilyLine("jamba.toml", "jamba", ("jamba",)),
    "kimi_linear": FamilyLine("weightctl.families.kimi_linear", "kimi-linear", ("kimi_linear",)),
    "lfm2": FamilyLine("lfm2.toml", "lfm2", ("lfm2",)),
    "lfm2_moe": FamilyLine("lfm2_moe.toml", "lfm2moe", ("lfm2_moe",)),
    "llama4": FamilyLine("llama4.toml", "llama4", ("llama4_text", "llama4")),
    "mamba": FamilyLine("mamba.toml", "mamba", ("mamba",)),
    "mamba2": FamilyLine("mamba2.toml", "mamba2", ("mamba2",)),
    "mimo2": FamilyLine("weightctl.families.mimo2", "mimo2", ("mimo_v2_flash",)),
    "minicpm": FamilyLine("minicpm.toml", "minicpm", ("minicpm",)),
    "minicpm3": FamilyLine("minicpm3.toml", "minicpm3", ("minicpm3",)),
    "minimax_m2": FamilyLine("minimax_m2.toml", "minimax-m2", ("minimax_m2",)),
    "mistral3": FamilyLine("mistral3.toml", "mistral3", ("ministral3", "mistral3")),
    "mistral4": FamilyLine("mistral4.toml", "mistral4", ("mistral4", "mistral3")),
    "modernbert": FamilyLine("modernbert.toml", "modern-bert", ("modernbert",)),
    "mpt": FamilyLine("mpt.toml", "mpt", ("mpt",)),
    "nemotron": FamilyLine("nemotron.toml", "nemotron", ("nemotron",)),
    "nemotron_h": FamilyLine("weightctl.families.nemotron_h", "nemotron_h", ("nemotron_h",)),
    "nemotron_h_moe": FamilyLine(
        "weightctl.families.nemotron_h_moe", "nemotron_h_moe", ("nemotron_h",)
    ),
    "nomic_bert": FamilyLine("nomic_bert.toml", "nomic-bert", ("nomic_bert",)),
    "olmo": FamilyLine("olmo.toml", "olmo", ("olmo",)),
    "olmo2": FamilyLine("olmo2.toml", "olmo2", ("olmo2",)),
    "olmo3": FamilyLine("olmo3.toml", "olmo2", ("olmo3",)),
    "olmoe": FamilyLine("olmoe.toml", "olmoe", ("olmoe",)),
    "phi2": FamilyLine("phi2.toml", "phi2", ("phi",)),
    "phimoe": FamilyLine("phimoe.toml", "phimoe", ("phimoe",)),
    "qwen2moe": FamilyLine("qwen2moe.toml", "qwen2moe", ("qwen2_moe",)),
    "qwen2vl": FamilyLine(
        "qwen2vl.toml",
        "qwen2vl",
        ("qwen2_5_vl_text", "qwen2_5_vl", "qwen2_vl_text", "qwen2_vl"),
    ),
    "qwen35": FamilyLine("qwen35.toml", "qwen35", ("qwen3_5_text", "qwen3_5")),
    "qwen35moe": FamilyLine("qwen35moe.toml", "qwen35moe", ("qwen3_5_moe_text", "qwen3_5_moe")),
    "qwen3next": FamilyLine("qwen3next.toml", "qwen3next", ("qwen3_next",)),
    "qwen3vl": FamilyLine("qwen3vl.toml", "qwen3vl", ("qwen3_vl_text", "qwen3_vl")),
    "qwen3vlmoe": FamilyLine(
        "qwen3vlmoe.toml", "qwen3vlmoe", ("qwen3_vl_moe_text", "qwen3_vl_moe")
    ),
    "recurrent_gemma": FamilyLine("recurrent_gemma.toml", "recurrent-gemma", ("recurrent_gemma",)),
    "roberta": FamilyLine("roberta.toml", "bert", ("roberta",)),
    "rwkv6": FamilyLine("weightctl.families.rwkv6", "rwkv6", ("rwkv6",)),
    "rwkv7": FamilyLine("weightctl.families.rwkv7", "rwkv7", ("rwkv7",)),
    "seed_oss": FamilyLine("seed_oss.toml", "seed_oss", ("seed_oss",)),
    "smollm3": FamilyLine("smollm3.toml", "smollm3", ("smollm3",)),
    "solar_open": FamilyLine("solar_open.toml", "glm4moe", ("solar_open",)),
    "stablelm": FamilyLine("stablelm.toml", "stablelm", ("stablelm",)),
    "starcoder": FamilyLine("starcoder.toml", "starcoder", ("gpt_bigcode",)),
    "starcoder2": FamilyLine("starcoder2.toml", "starcoder2", ("starcoder2",)),
    "t5": FamilyLine("weightctl.families.t5", "t5", ("t5",)),
    "xlm_roberta": FamilyLine("xlm_roberta.toml", "bert", ("xlm-roberta",)),
}

_NAMES = {
    "add_family": "weightctl.families.added:add_family",
    "RecognizedModel": "weightctl.families.checkpoint:RecognizedModel",
    "recognize": "weightctl.families.recognition:recognize",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)
