"""Names of the files of training checkpoints, without importing the modules that read them."""

from __future__ import annotations

import re

# A file with chunks, as torch writes it for Hugging Face.
SHARD = re.compile(r"shard-(?P<rank>\d{5})-model-\d{5}-of-\d{5}\.safetensors")
# DeepSpeed's file of the optimizer of a rank.
OPTIMIZER = re.compile(
    r"(bf16_)?zero_pp_rank_(?P<rank>\d{1,9})_mp_rank_(?P<model>\d{1,9})_optim_states\.pt"
)
# Megatron's directory of a rank: its number for tensor parallelism, then for pipelines.
DIRECTORY_OF_RANK = re.compile(r"mp_rank_\d{2}(_\d{3}){0,2}")
# A tensor of Megatron Core.
IN_MEGATRON = re.compile(r"(^|\.)decoder\.layers\.(\d+\.)?self_attention\.linear_qkv\.weight$")
