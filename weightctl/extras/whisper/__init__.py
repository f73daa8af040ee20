"""Whisper models in the names of OpenAI, of Hugging Face, and in the files of whisper.cpp."""
