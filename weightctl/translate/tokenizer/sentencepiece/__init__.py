"""Tokenizers of SentencePiece: their model file, and tokenizer.json made of one."""
