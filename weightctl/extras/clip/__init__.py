"""CLIP models in the names of OpenAI and OpenCLIP, and in those of Hugging Face."""
