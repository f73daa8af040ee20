"""Rules for the files of a model: weights, index, configs, tokenizer, template, card, adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use, make_callable

if TYPE_CHECKING:
    from weightctl.check.checking import Checked, check
    from weightctl.check.model import CheckedModel
    from weightctl.check.rules import RULES, JsonChange, Level, Rule, RuleFinding

__all__ = [
    "RULES",
    "Checked",
    "CheckedModel",
    "JsonChange",
    "Level",
    "Rule",
    "RuleFinding",
    "check",
]

__getattr__ = load_on_use(
    __name__,
    {
        "RULES": "weightctl.check.rules:RULES",
        "Checked": "weightctl.check.checking:Checked",
        "CheckedModel": "weightctl.check.model:CheckedModel",
        "JsonChange": "weightctl.check.rules:JsonChange",
        "Level": "weightctl.check.rules:Level",
        "Rule": "weightctl.check.rules:Rule",
        "RuleFinding": "weightctl.check.rules:RuleFinding",
        "check": "weightctl.check.checking:check",
    },
)

make_callable(__name__, "check")
