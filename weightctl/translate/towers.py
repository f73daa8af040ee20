"""Towers in the other naming convention: a file of their own in GGUF, or a part of the checkpoint.

llama.cpp calls this file `mmproj`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError
from weightctl.families.config_writing import model_type_of, to_gguf, to_hugging_face
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.matching import EMBEDDING_WEIGHT
from weightctl.families.model import ARCHITECTURE, CLIP
from weightctl.families.towers.recognition import PREPROCESSOR, find_own_tower, read_tower_file
from weightctl.formats.huggingface import CONFIG, config, json_document, model_directory
from weightctl.plan.file_types import file_type
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.text.wording import join_names, pluralize
from weightctl.translate import card
from weightctl.translate.models import Translation
from weightctl.translate.tensors import translate_tensors
from weightctl.weights.derived import Combined, Derived, DerivedTensor, tensor_of
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.steps.reshaped import WithoutAxis
from weightctl.weights.steps.rows import RowRange
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.families import RecognizedModel
    from weightctl.families.towers.recognition import RecognizedTower
    from weightctl.families.towers.tower import BreakToken
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header

_MOST_NAMED = 4
_TIED, _DTYPE = "tie_word_embeddings", "torch_dtype"
_TOKENS = "tokenizer.ggml.tokens"


def translate_tower(text: RecognizedModel) -> Translation:
    """Return the tower of a multimodal checkpoint as GGUF has it, in a file of its own.

    `text` is the recognized text model of the checkpoint. Raises `ArchitectureError` as
    `find_own_tower` does, if the tensors of the tower do not match its config, and if a token that
    the file needs is missing.
    """
    found = find_own_tower(text)
    tower, model = found.tower, found.model
    model.check()
    tensors = translate_tensors(model, "gguf")
    if tower.break_token is not None:
        tensors |= _copy_embedding(text, tower.break_token)
    directory = _directory(text)
    notes = list(found.notes)
    metadata = {
        ARCHITECTURE: MetadataValue("string", CLIP),
        "general.type": MetadataValue("string", "mmproj"),
    }
    size = sum(tensor.info.size for tensor in model.tensors.values())
    metadata |= card.from_directory(directory, size, notes.append)
    metadata |= to_gguf(tower.family, model.fields)
    metadata["general.file_type"] = MetadataValue(
        "u32", file_type(each.info for each in tensors.values())
    )
    if model.beside:
        notes.append(
            f"not written: {pluralize(len(model.beside), 'tensor')} of the tower that llama.cpp "
            f"does not use or weightctl does not support: {join_names(model.beside, _MOST_NAMED)}"
        )
    tree = Checkpoint(Derived(source_of(text.tree), tensors, metadata))
    return Translation(tree, {}, tuple(notes), f"{tower.family.name}, Hugging Face -> GGUF")


def join_tower(text: RecognizedModel, made: Translation, weights: Checkpoint) -> Translation:
    """Return a text model in Hugging Face's convention with its tower, which is in another file.

    `text` is the recognized text model of a GGUF file, `made` its translation, and `weights` the
    content of the mmproj file. Raises `ArchitectureError` as `read_tower_file` does, and if the
    tensors of the tower do not match its metadata.
    """
    found = read_tower_file(weights, text)
    found.model.check()
    tower = found.tower
    source = source_of(made.weights)
    tensors: dict[str, ReadableTensor] = {
        _with_prefix(name, tower.text_prefixes): tensor_of(source, name)
        for name in source.header.tensors
    }
    own = translate_tensors(found.model, "hugging_face")
    both = Combined(source_of(text.tree), source_of(weights))
    tree = Checkpoint(Derived(both, {**tensors, **own}, source.header.metadata))
    documents, notes = _write_documents(found, text, made)
    return made._replace(
        weights=tree,
        documents=documents,
        notes=(*made.notes, *found.notes, *notes),
        text=f"{made.text}, with {tower.family.name}",
        tower=frozenset(own),
    )


def _write_documents(
    found: RecognizedTower, text: RecognizedModel, made: Translation
) -> tuple[Mapping[str, bytes], Sequence[str]]:
    """Return the documents of the whole model, and notes on what they lack."""
    tower, fields = found.tower, found.model.fields
    inner: dict[str, Any] = json.loads(made.documents[CONFIG])
    inner.pop("architectures", None)
    if text.family.name in tower.types:
        kind, inner[MODEL_TYPE] = tower.types[text.family.name]
    else:
        kind = model_type_of(tower.family, fields)
    outer = to_hugging_face(tower.family, fields, kind)
    outer.pop("text")
    settings = {**outer.pop("preprocessor", {}), **tower.processor(fields)}
    tokens, notes = _find_tokens(tower.tokens, text)
    document = {
        **outer,
        **tokens,
        **{key: inner[key] for key in (_TIED, _DTYPE) if key in inner},
        "text_config": {key: value for key, value in inner.items() if key != _DTYPE},
    }
    documents = {
        **made.documents,
        CONFIG: json_document(document),
        PREPROCESSOR: json_document(settings),
    }
    notes.append(
        f"{PREPROCESSOR} has what the mmproj file states: copy the file from the original model if "
        "you have it, for other settings of the image processor"
    )
    return documents, notes


def _find_tokens(
    tokens: Mapping[str, str], text: RecognizedModel
) -> tuple[dict[str, int], list[str]]:
    """Return the ids of tokens by the keys of config.json, and a note on missing tokens."""
    value = header_of(text.tree).metadata.get(_TOKENS)
    words: Sequence[Any] = value.content if value is not None and is_sequence(value.content) else ()
    places = {word: number for number, word in enumerate(words) if word in tokens.values()}
    missing = [key for key, token in tokens.items() if token not in places]
    found = {key: places[token] for key, token in tokens.items() if token in places}
    if not missing:
        return found, []
    note = f"the GGUF does not have the tokens of {join_names(missing, len(missing))}"
    return found, [f"{note}: {CONFIG} lacks these keys, so transformers uses its own ids"]


def _with_prefix(name: str, prefixes: Mapping[str, str]) -> str:
    old = next((each for each in prefixes if name.startswith(each)), "")
    return prefixes[old] + name.removeprefix(old) if old else name


def _copy_embedding(text: RecognizedModel, token: BreakToken) -> dict[str, ReadableTensor]:
    """Return the embedding of a token as a vector of its own."""
    number = next(_list_ids(header_of(text.tree), token.token), None)
    embedding = text.tensors[EMBEDDING_WEIGHT]
    if number is None or number >= embedding.info.shape[0]:
        state = "is missing" if number is None else "has an id that is too large"
        raise ArchitectureError(
            f"{text.where}: the tokenizer's token {token.token}, whose embedding is stored in the "
            f"mmproj file, {state}",
            hint="put tokenizer.json or tokenizer_config.json of the model beside its config.json",
        )
    row: ReadableTensor = DerivedTensor(token.gguf, RowRange(number, number + 1), [embedding])
    if row.info.encoding.name != "F32":
        row = DerivedTensor(token.gguf, AsFloat32(), [row])
    return {token.gguf: DerivedTensor(token.gguf, WithoutAxis(0), [row])}


def _list_ids(header: Header, token: str) -> Iterator[int]:
    """Yield the ids that the files of a tokenizer state for an added token."""
    stated = config(header, "tokenizer_config.json").get("added_tokens_decoder")
    if is_object(stated):
        for number, each in stated.items():
            if is_object(each) and each.get("content") == token and number.isdecimal():
                yield int(number)
    added = config(header, "tokenizer.json").get("added_tokens")
    for each in added if is_list(added) else ():
        place = each.get("id") if is_object(each) else None
        if is_object(each) and each.get("content") == token and isinstance(place, int):
            yield place


def _directory(text: RecognizedModel) -> str:
    return model_directory(header_of(text.tree)) or ""
