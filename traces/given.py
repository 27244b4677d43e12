"""Which flags somebody gave, and the refusal of one that would change nothing. Knows no command."""

import typer

from engine.core.errors import ConfigError


class Given:
    """The flags on one command line; not those of the environment, of a preset, or left to their defaults."""

    def __init__(self, context: typer.Context) -> None:
        self._flags: dict[str, str] = {}
        """Name of a parameter -> its flag."""
        for parameter in context.command.params:
            name = parameter.name or ""
            source = context.get_parameter_source(name)
            if (
                source is None
                or source.name != "COMMANDLINE"
                or parameter.param_type_name != "option"
            ):
                continue
            spelled = parameter.opts
            if context.params[name] is False and parameter.secondary_opts:
                spelled = parameter.secondary_opts
            self._flags[name] = next((s for s in spelled if s.startswith("--")), spelled[0])

    def __contains__(self, name: str) -> bool:
        return name in self._flags

    def refuse(self, *names: str, why: str) -> None:
        """Refuses these flags where they are given; `why` says what is missing or in the way, as the end of a sentence.

        Raises:
            ConfigError: one is given.
        """
        for name in names:
            if name in self._flags:
                raise ConfigError(f"{self._flags[name]} changes nothing {why}")

    def refuse_all_but(self, *names: str, why: str) -> None:
        """Refuses every flag but these.

        Raises:
            ConfigError: another one is given.
        """
        self.refuse(*(name for name in self._flags if name not in names), why=why)
