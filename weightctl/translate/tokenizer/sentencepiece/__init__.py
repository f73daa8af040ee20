"""SentencePiece tokenizers: their model file, and the tokenizer.json made from one."""
