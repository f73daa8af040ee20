"""What a checkpoint says beside its tensors: tokenizer, special tokens and config, compared."""
