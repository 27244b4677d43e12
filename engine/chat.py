"""A chat's messages to one prompt, by the Jinja template that comes with the model, run in a sandbox with bounds.

Knows templates and the codec; knows nothing of HTTP. What people write in a chat can never become a control token: each of
their texts that spells one out is broken by an escape character before the template sees it, and the codec takes the escape out
again after it has looked for control tokens.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import jinja2
import numpy as np
from numpy.typing import NDArray

from engine.core.errors import RequestError, WeightsError
from engine.template_sandbox import BoundedSandbox
from engine.tokenizer import Codec

Message = Mapping[str, str]
"""`role`, `content`, and `name` where the client gave one."""


_TEMPLATE_FAULTS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What code in a template can raise on messages that it was not written for."""


class ChatTemplate:
    """How one model wants its chats written. Immutable, and safe to use from several threads."""

    def __init__(self, codec: Codec, source: str | None) -> None:
        """Compiles `source`, the Jinja text of the model file; None where the file has none.

        Raises:
            WeightsError: the template is not valid Jinja.
        """
        self._codec = codec
        self._sandbox = _sandbox()
        self._template = None if source is None else _compile(self._sandbox, source)
        texts = sorted((t for t in codec.control_texts if len(t) > 1), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, texts))) if texts else None

    def encode(self, messages: Sequence[Message]) -> NDArray[np.int32]:
        """[num_tokens] ids of the prompt after which the model writes the assistant's next message.

        Raises:
            RequestError: there is no template, or it cannot take these messages; `param` is `messages`.
        """
        escape = _unused_character(messages)
        return self._codec.encode(self.render(messages, escape=escape), escape=escape)

    def render(self, messages: Sequence[Message], *, escape: str) -> str:
        """The prompt as text, with `escape` inside each control token that a message spells out.

        Raises:
            RequestError: as in `encode`.
        """
        if self._template is None:
            raise RequestError(
                "this model has no chat template; send a prompt to /v1/completions instead",
                param="messages",
                code="no_chat_template",
            )
        safe = [{key: self._broken(text, escape) for key, text in m.items()} for m in messages]
        try:
            with self._sandbox.bounds():
                return self._template.render(
                    messages=safe,
                    add_generation_prompt=True,
                    bos_token=self._codec.bos_text,
                    eos_token=self._codec.eos_text,
                )
        except _Refused as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from None
        except _TEMPLATE_FAULTS as error:
            raise RequestError(
                f"the model's chat template cannot take these messages: {error}", param="messages"
            ) from error

    def _broken(self, text: str, escape: str) -> str:
        if self._control is None:
            return text
        return self._control.sub(lambda match: match[0][0] + escape + match[0][1:], text)


class _Refused(jinja2.TemplateError):
    """A template called `raise_exception`."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _sandbox() -> BoundedSandbox:
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    return environment


def _compile(sandbox: BoundedSandbox, source: str) -> jinja2.Template:
    try:
        return sandbox.template_of(source)
    except jinja2.TemplateSyntaxError as error:
        raise WeightsError(
            f"the chat template of the model file is not valid Jinja: line {error.lineno}: {error.message}"
        ) from error


def _unused_character(messages: Sequence[Message]) -> str:
    """A private-use character that stands in none of the messages."""
    used: set[str] = set().union(*(text for message in messages for text in message.values()))
    return next(char for char in map(chr, range(0xF0000, 0x10FFFE)) if char not in used)
