"""The text model of Step 3.7 alone, as Step 3.5 is released: transformers has no class for it.

Importing the module registers the class.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7 import modeling_step3p7

from lazy import torch, transformers


class Step3p5ForCausalLM(modeling_step3p7.Step3p7PreTrainedModel):
    config_class = modeling_step3p7.Step3p7TextConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = modeling_step3p7.Step3p7TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        states = self.model(input_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(states))


# Without `exist_ok`, nothing is registered for a config class of transformers.
transformers.AutoModelForCausalLM.register(
    Step3p5ForCausalLM.config_class, Step3p5ForCausalLM, exist_ok=True
)
