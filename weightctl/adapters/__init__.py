"""Low-rank adapters (LoRA): reading, merging into a model, llama.cpp's files, and extraction."""
