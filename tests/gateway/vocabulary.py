"""A tokenizer small enough to read: one token a byte, and three control tokens."""

from engine.chat import ChatTemplate
from engine.tokenizer import Codec
from engine.vocabularies import byte_letters
from engine.weights.tokenizer_data import TokenizerData

CONTROLS = ["<|start|>", "<|end|>", "<|pad|>"]
START, END, PAD = 0, 1, 2
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_tokens() -> TokenizerData:
    """Byte b is token 3 + b."""
    letters = byte_letters()
    return TokenizerData(
        model="gpt2",
        pre_tokenizer="gpt-2",
        tokens=[*CONTROLS, *(letters[value] for value in range(256))],
        types=[3] * 3 + [1] * 256,
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


def byte_codec() -> Codec:
    return Codec(byte_tokens())


def byte_chat() -> ChatTemplate:
    return ChatTemplate(byte_codec(), TEMPLATE)
