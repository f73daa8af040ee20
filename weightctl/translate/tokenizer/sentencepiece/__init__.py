"""SentencePiece tokenizers: reading of their model files, and writing of tokenizer.json."""
