"""What a model file says about its tokenizer, as plain data. Knows nothing of how text is cut into tokens."""

from msgspec import Struct


class TokenizerData(Struct, frozen=True, kw_only=True):
    """Vocabulary, merge rules and special ids of one model file, in the file's own order and words.

    `len(tokens) == len(types)`; the ids are positions in `tokens`.
    """

    model: str
    """Kind of vocabulary: `gpt2` (byte-level BPE with `merges`) or `llama` (sentence pieces with `scores`)."""
    pre_tokenizer: str
    """Name of the rule that cuts text before merging, such as `smollm` or `llama-bpe`; `default` where the file has none."""
    tokens: list[str]
    types: list[int]
    """1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; all 1 where the file has none."""
    merges: list[str]
    """Pairs to merge, best first, the two parts separated by one space."""
    scores: list[float]
    """One a token for `llama` vocabularies; else empty."""
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    """End of a chat turn, where the file names it apart from `eos_id`."""
    unknown_id: int | None
    add_bos: bool
    add_space_prefix: bool
    chat_template: str | None
    """Jinja source, or None."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a generation, without repeats."""
        return tuple(dict.fromkeys(i for i in (self.eos_id, self.eot_id) if i is not None))
