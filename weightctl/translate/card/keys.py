"""The names of facts in GGUF's metadata and in a README's front matter."""

from __future__ import annotations

__all__ = ["BASE", "DATASET", "ENTRY", "HUB", "LISTS", "NAMES", "SOURCES", "TEXTS"]

HUB = "https://huggingface.co/"

# GGUF's key, without `general.`, and what a README may call it; what it is called first wins, and
# the first is what we write.
TEXTS = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "description": ("description", "model_description"),
    "quantized_by": ("quantized_by",),
    "size_label": ("size_label", "model_size_label"),
    "license": ("license",),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}
# All that these say is one list.
LISTS = {"tags": ("tags", "pipeline_tag"), "languages": ("language", "languages")}
BASE, DATASET = "base_model", "dataset"
# What a model was made from.
SOURCES = {
    BASE: ("base_model", "base_models", "base_model_sources"),
    DATASET: ("datasets", "dataset", "dataset_sources"),
}
# What GGUF says of each of these.
ENTRY = (
    "name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url",
)  # fmt: skip
NAMES = frozenset(
    name for table in (TEXTS, LISTS, SOURCES) for names in table.values() for name in names
)
