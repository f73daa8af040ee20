"""Configs that one of the conventions cannot express are refused, and never written wrong."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_documents import DOCUMENTS, Document, crossed, described, fields_of, find_family
from each import each
from weightctl.errors import ArchitectureError
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.written import model_type_of, to_gguf, to_hugging_face
from weightctl.weights.metadata import MetadataValue

# What files may say, in which few models make sense.
CHANGES = st.one_of(
    st.none(), st.booleans(), st.integers(1, 64), st.floats(0, 2), st.sampled_from([
        1024, 4096, 1 << 20, 1e-5, 1e6, "silu", "gelu_pytorch_tanh", "default", "linear", "yarn",
        "longrope",
    ]),
)  # fmt: skip
IN_ROPE = [
    "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "attention_factor",
    "partial_rotary_factor", "beta_fast", "mscale", "mscale_all_dim", "low_freq_factor",
]  # fmt: skip


@each(
    "name, changes, message",
    [
        (
            "llama",
            {"activation": "relu"},
            r"`activation` is `'relu'`, but llama\.cpp would read `'silu'`",
        ),
        ("llama", {"layers": 0}, "`llama.block_count` is `0`"),
        ("llama", {"hidden": "many"}, "`llama.embedding_length` is `'many'`"),
        ("llama yarn", {"scaling.truncate": False}, "`truncate`"),
    ],
)
def test_what_llama_cpp_would_run_otherwise_is_not_a_gguf(
    name: str, changes: Document, message: str
) -> None:
    fields = fields_of(DOCUMENTS[name]) | changes
    with pytest.raises(ArchitectureError, match=message) as caught:
        to_gguf(find_family(DOCUMENTS[name]), fields)
    assert caught.value.hint


@each(
    "name, changes, message",
    [
        ("llama", {"rope_dimensions": 64}, "`rope_dimensions` is `64`"),
        ("llama", {"attention_bias": True}, "bias"),
        ("llama", {"has_rope_factors": True}, "`has_rope_factors` is `True`"),
        (
            "llama",
            {"activation": "tanh"},
            ("`hidden_act` is `'tanh'`, a value that the key does not support"),
        ),
        (
            "phi3 long",
            {"scaling.short_factors": ()},
            (
                "has 0 values in `short_factor` and 48 in `long_factor`, but there are 48 pairs of "
                "rotary dimensions: each needs one value"
            ),
        ),
    ],
)
def test_what_transformers_would_run_otherwise_is_not_a_config_json(
    name: str, changes: Document, message: str
) -> None:
    document = DOCUMENTS[name]
    fields = fields_of(document) | changes
    with pytest.raises(ArchitectureError, match=message) as caught:
        to_hugging_face(find_family(document), fields, document["model_type"])
    assert caught.value.hint


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_whatever_can_be_read_is_written_or_refused(name: str, data: st.DataObject) -> None:
    document = dict(DOCUMENTS[name])
    family = find_family(document)
    paths = sorted({key.hugging_face for key in family.keys if "." not in key.hugging_face} - {""})
    document |= data.draw(st.dictionaries(st.sampled_from(paths), CHANGES, max_size=2))
    rope = dict(document.get("rope_parameters", {}))
    if not any(isinstance(value, dict) for value in rope.values()):
        rope |= data.draw(st.dictionaries(st.sampled_from(IN_ROPE), CHANGES, max_size=3))
        document["rope_parameters"] = rope
    try:
        read = from_hugging_face(family, document, "config.json")
    except ArchitectureError:
        return
    with contextlib.suppress(ArchitectureError):
        written = to_hugging_face(family, read.fields, document["model_type"])
        assert from_hugging_face(family, written, "config.json").config == read.config
    with contextlib.suppress(ArchitectureError):
        crossed(document)


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
def test_whatever_metadata_say_is_written_or_refused(name: str, data: st.DataObject) -> None:
    family = find_family(DOCUMENTS[name])
    metadata = described(family, fields_of(DOCUMENTS[name]))
    keys = {key.gguf.format(arch=family.gguf_name): key for key in family.keys if key.gguf}
    for changed in data.draw(st.lists(st.sampled_from(sorted(keys)), max_size=3)):
        metadata[changed] = MetadataValue(keys[changed].kind.gguf_type, data.draw(CHANGES))
    try:
        fields = from_gguf(family, metadata, {}, "model.gguf").fields
    except ArchitectureError:
        return
    with contextlib.suppress(ArchitectureError):
        to_hugging_face(family, fields, model_type_of(family, fields))
    with contextlib.suppress(ArchitectureError):
        to_gguf(family, fields)
