"""Settings from outside to Structs; what is wrong is led by the flag that was typed, and has the values that are known. Knows no command."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError
from traces.names import unknown

S = TypeVar("S", bound=Struct)
W = TypeVar("W", bound=str)


class FileError(ConfigError):
    """A file of settings cannot be read, or does not hold what it should: whatever is set beside it, there is no answer."""


def why_unread(error: Exception) -> str:
    """`No such file or directory`, or what is wrong with the content."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


_EXPECTED: Final = re.compile(
    r"Expected `(int|float|bool|str)( \| null)?`(?: (>=|<=|>|<) (\S+))?(?:, got `\w+`)?"
)
_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a word",
}
_BOUNDS: Final = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}
_NO_VALUE: Final = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)


def checked(settings: object, kind: type[S], flags: Mapping[str, str] | None = None) -> S:
    """The settings as a `kind`.

    Args:
        settings: Values by name.
        kind: What they are the fields of.
        flags: Of settings whose flag has another name than they: `{"num_sequences": "--n"}`.

    Raises:
        ConfigError: a setting is unknown or out of range; the message names its flag.
    """
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        names = path.removesuffix("`").split(".") if path else []
        said = complaint(text, _type_at(kind, names))
        if not names:
            raise ConfigError(said) from None
        name = names[-1]
        flag = (flags or {}).get(name, "--" + name.replace("_", "-"))
        raise ConfigError(f"{flag}: {said}") from None


def complaint(text: str, kind: object) -> str:
    """What msgspec says of a value that is no `kind`, in plain words; of one that is none of several words, with the words."""
    match = _NO_VALUE.fullmatch(text)
    known = choices(kind)
    if match and known:
        return unknown("value", match[1], known)
    match = _EXPECTED.fullmatch(text)
    if not match:
        return text
    kind_of, optional, bound, limit = match.groups()
    within = f" {_BOUNDS[bound]} {_figure(limit)}" if bound else ""
    return f"expected {_KINDS[kind_of]}{within}{', or none' if optional else ''}"


def _figure(text: str) -> str:
    """A bound as people write it: 1,000,000 where it is written 1000000.0."""
    value = float(text)
    return f"{int(text.removesuffix('.0')):,}" if value.is_integer() and "e" not in text else text


def choices(kind: object) -> list[str]:
    """The words that a type takes; none where it is not of words."""
    origin = get_origin(kind)
    if origin is Literal:
        return [value for value in get_args(kind) if isinstance(value, str)]
    inner = get_args(kind)[:1] if origin is Annotated else get_args(kind)
    return [word for part in inner for word in choices(part)]


def _type_at(kind: type[Struct], names: list[str]) -> object:
    found: Any = kind
    for name in names:
        if not (isinstance(found, type) and issubclass(found, Struct)):
            return None
        found = get_type_hints(found, include_extras=True).get(name)
    return found


def one_of(flag: str, value: str, known: tuple[W, ...]) -> W:
    """`value`, which a flag takes as one of several words.

    Raises:
        ConfigError: it is none of them.
    """
    for word in known:
        if word == value:
            return word
    raise ConfigError(f"{flag}: {unknown('value', value, known)}")
