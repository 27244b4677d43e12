"""A tokenizer small enough to read: token 0 ends an answer, 1 and 2 are two more control tokens, then come the 256 bytes, then
whatever pieces a test wants its model to say."""

from collections.abc import Sequence

from engine.chat import ChatTemplate
from engine.tokenizer import Codec
from engine.vocabularies import byte_letters
from engine.weights.tokenizer_data import TokenizerData

END, START, PAD = 0, 1, 2
FIRST_PIECE = 259
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_tokens(pieces: Sequence[bytes] = ()) -> TokenizerData:
    """Byte b is token b + 3, piece i is token 259 + i."""
    letters = byte_letters()
    tokens = ["<|end|>", "<|start|>", "<|pad|>", *(letters[value] for value in range(256))]
    tokens += ["".join(letters[value] for value in piece) for piece in pieces]
    types = [3] * 3 + [1] * (len(tokens) - 3)
    return TokenizerData(
        model="gpt2",
        pre_tokenizer="gpt-2",
        tokens=tokens,
        types=types,
        merges=[],
        scores=[],
        bos_id=START,
        eos_id=END,
        eot_id=None,
        unknown_id=None,
        add_bos=False,
        add_space_prefix=False,
        chat_template=TEMPLATE,
    )


def byte_codec(pieces: Sequence[bytes] = ()) -> Codec:
    return Codec(byte_tokens(pieces))


def byte_chat(codec: Codec) -> ChatTemplate:
    return ChatTemplate(codec, TEMPLATE)
