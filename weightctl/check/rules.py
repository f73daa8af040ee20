"""The table of rules. An id is stable: it does not change, and is not used again."""

from __future__ import annotations

from weightctl.check.findings import Level, Rule

_HERE = "weightctl.check"
_ERROR, _WARNING = Level.ERROR, Level.WARNING

RULES: dict[str, Rule] = {
    "weights-readable": Rule(
        f"{_HERE}.weights:find_damage",
        _ERROR,
        "the files of weights can be opened",
        "a file is damaged, incomplete, or not a checkpoint, so no program can load it",
    ),
    "weights-structure": Rule(
        f"{_HERE}.weights:find_unsound",
        _ERROR,
        "the files are consistent, and other libraries can read them",
        "these are the problems of the check `structure` of `weightctl verify`",
    ),
    "weights-names": Rule(
        f"{_HERE}.weights:find_misfits",
        _ERROR,
        "the tensors are those that the model family and the config require",
        "these are the problems of the check `names` of `weightctl verify`; programs refuse such "
        "a model, or fill missing tensors with random values",
    ),
    "weights-metadata": Rule(
        f"{_HERE}.weights:find_gguf_metadata",
        _ERROR,
        "the metadata of a GGUF file are consistent",
        "these are the problems of the check `metadata` of `weightctl verify`",
    ),
    "index-readable": Rule(
        f"{_HERE}.index:find_unreadable_index",
        _ERROR,
        "the index of a split checkpoint is valid",
        "programs find the parts by the index, so that they cannot load the model",
    ),
    "index-absent-part": Rule(
        f"{_HERE}.index:find_absent_parts",
        _ERROR,
        "the parts that the index lists exist",
        "the download is incomplete, or a part was renamed",
    ),
    "index-missing-entry": Rule(
        f"{_HERE}.index:find_missing_entries",
        _ERROR,
        "the index lists all tensors of the parts",
        "programs do not load a tensor that the index does not list, and fill it with random "
        "values",
        "adds the tensors",
    ),
    "index-extra-entry": Rule(
        f"{_HERE}.index:find_extra_entries",
        _ERROR,
        "the tensors that the index lists are in the parts",
        "programs that look for a listed tensor fail",
        "removes the entries, if all parts exist",
    ),
    "index-wrong-part": Rule(
        f"{_HERE}.index:find_wrong_parts",
        _ERROR,
        "the index lists the right part for each tensor",
        "programs that look for a tensor in the listed part fail",
        "names the part that has the tensor",
    ),
    "index-repeated-tensor": Rule(
        f"{_HERE}.index:find_repeated_tensors",
        _ERROR,
        "each tensor is in one part",
        "the parts are of different versions, and programs may load either tensor",
    ),
    "index-total-size": Rule(
        f"{_HERE}.index:find_stale_total",
        _WARNING,
        "`total_size` in the index is the size of the tensors",
        "programs use it to plan memory; a wrong size also shows that the index is that of other "
        "files",
        "sets the size of the tensors",
    ),
    "json-readable": Rule(
        f"{_HERE}.config:find_damaged_documents",
        _ERROR,
        "the JSON files of the directory are JSON objects",
        "programs that read the file fail",
    ),
    "config-dtype": Rule(
        f"{_HERE}.config:find_wrong_dtypes",
        _WARNING,
        "`dtype` or `torch_dtype` in config.json is the dtype of the weights",
        "transformers converts the weights to this dtype, which rounds values or doubles memory",
        "sets the dtype that most values have",
    ),
    "config-class": Rule(
        f"{_HERE}.config:find_foreign_classes",
        _WARNING,
        "the classes that `architectures` and `auto_map` name are of the model family",
        "programs that use another class may compute something else",
    ),
    "config-quantization": Rule(
        f"{_HERE}.config:find_missing_quantization",
        _ERROR,
        "config.json has the settings of quantized weights",
        "without `quantization_config`, programs take packed values and scales for unknown tensors",
        "copies the settings of quantize_config.json or quant_config.json, if there is one",
    ),
    "config-tied-embeddings": Rule(
        f"{_HERE}.weights:find_tying",
        _ERROR,
        "`tie_word_embeddings` agrees with the stored output",
        "if the output is missing, programs fill it with random values; if it is stored and "
        "differs from the embedding, they ignore it",
        "sets `tie_word_embeddings` to true if no output is stored; if one is stored, the files do "
        "not say whether it is used",
    ),
    "token-id-range": Rule(
        f"{_HERE}.tokenizer:find_ids_out_of_range",
        _ERROR,
        "the ids of special tokens in config.json and generation_config.json are tokens",
        "the id is of another model; generation does not stop, or fails",
        "sets the id that the tokenizer has, or removes the id from a list",
    ),
    "token-id-other": Rule(
        f"{_HERE}.tokenizer:find_other_ids",
        _WARNING,
        "the ids of special tokens are those of the tokenizer",
        "generation stops at another token than the one that the tokenizer names",
        "sets the id that the tokenizer has, unless the stated id is an added token too",
    ),
    "tokenizer-repeated-id": Rule(
        f"{_HERE}.tokenizer:find_repeated_ids",
        _ERROR,
        "each id in tokenizer.json has one text",
        "two texts are encoded as the same token, and decoding gives only one of them",
    ),
    "tokenizer-unknown-token": Rule(
        f"{_HERE}.tokenizer:find_unknown_texts",
        _WARNING,
        "special tokens are in the vocabulary of tokenizer.json",
        "transformers adds a token with a new id, for which the embedding may have no row",
    ),
    "tokenizer-special-map": Rule(
        f"{_HERE}.tokenizer:find_other_texts",
        _WARNING,
        "special_tokens_map.json agrees with tokenizer_config.json",
        "programs that read only one of the files use another special token",
        "copies the token of tokenizer_config.json, if it is in the vocabulary",
    ),
    "tokenizer-added-token": Rule(
        f"{_HERE}.tokenizer:find_added_tokens",
        _WARNING,
        "`added_tokens_decoder` has the ids of tokenizer.json",
        "the slow and the fast tokenizer encode the token differently",
    ),
    "template-syntax": Rule(
        f"{_HERE}.template:find_wrong_syntax",
        _ERROR,
        "chat templates are valid Jinja",
        "programs cannot format a chat; templates are parsed here, and not run",
    ),
    "template-two": Rule(
        f"{_HERE}.template:find_other_templates",
        _WARNING,
        "chat_template.jinja and tokenizer_config.json have the same template",
        "transformers uses chat_template.jinja, and other programs may use the other one",
    ),
    "code-harmful": Rule(
        f"{_HERE}.code:find_harmful_code",
        _ERROR,
        "no file has or names code that is recognized as harmful",
        "programs that load the model run it; `weightctl ls --scan` looks at all files, and at "
        "pickles",
    ),
    "code-other": Rule(
        f"{_HERE}.code:find_other_code",
        _WARNING,
        "no file has or names other code",
        "some programs import or run it, such as transformers with `trust_remote_code`; weightctl "
        "does not judge it",
    ),
    "card-front-matter": Rule(
        f"{_HERE}.card:find_wrong_front_matter",
        _WARNING,
        "the front matter of README.md is valid YAML",
        "the Hugging Face Hub does not show license, languages and base model",
    ),
    "card-license": Rule(
        f"{_HERE}.card:find_unnamed_license",
        _WARNING,
        "a license that is `other` has a name",
        "the Hugging Face Hub cannot show the license",
    ),
    "card-base-model": Rule(
        f"{_HERE}.card:find_other_base",
        _WARNING,
        "README.md and adapter_config.json name the same base model",
        "one of them is of another model",
    ),
    "adapter-rank": Rule(
        f"{_HERE}.adapter:find_wrong_rank",
        _ERROR,
        "`r` in adapter_config.json is the rank of the matrices",
        "PEFT refuses the matrices, and other programs scale them wrongly",
        "sets the rank, if all matrices have the same one",
    ),
    "adapter-scale": Rule(
        f"{_HERE}.adapter:find_wrong_scales",
        _ERROR,
        "ranks are positive integers, and alphas are finite numbers",
        "the product of the matrices is multiplied by alpha / rank: PEFT fails, or the merged "
        "model has values that are not finite",
    ),
    "adapter-unmatched-module": Rule(
        f"{_HERE}.adapter:find_unmatched_modules",
        _WARNING,
        "each target module has matrices",
        "PEFT adds untrained matrices to the module, or the name is misspelled",
    ),
    "adapter-untargeted-module": Rule(
        f"{_HERE}.adapter:find_untargeted_modules",
        _ERROR,
        "the modules of all matrices are target modules",
        "PEFT ignores these matrices, so that a part of the training is lost",
    ),
    "adapter-base": Rule(
        f"{_HERE}.adapter:find_no_base",
        _WARNING,
        "an adapter names its base model",
        "programs that load the adapter by itself do not find the model",
    ),
}
