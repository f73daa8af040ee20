"""Conversions that merge LoRA adapters into a model, or extract them from one."""
