"""Commands whose flags are the fields of Structs: a group of flags is written once, and arrives as one value.

Knows signatures and Structs; knows no flag. Imports nothing that is slow.
"""

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, get_type_hints

from msgspec import NODEFAULT, Struct


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer reads it: in the place of each parameter that is annotated with a Struct stand the Struct's fields.

    Fields keep their order, annotations and defaults. `command` is called with a Struct of what was given.

    Raises:
        TypeError: two of its flags have one name.
    """
    groups: dict[str, type[Struct]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Struct):
            groups[parameter.name] = kind
            parameters += _fields_of(kind)
        else:
            parameters.append(parameter)
    names = [parameter.name for parameter in parameters]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TypeError(f"two flags of {command.__name__} have one name: {', '.join(twice)}")

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in kind.__struct_fields__})
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _fields_of(kind: type[Struct]) -> list[inspect.Parameter]:
    """A parameter for each field of `kind`, all of them by keyword."""
    hints = get_type_hints(kind, include_extras=True)
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    defaults = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if default is NODEFAULT else default,
            annotation=hints[name],
        )
        for name, default in zip(names, defaults, strict=True)
    ]
