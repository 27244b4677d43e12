"""Checks of a run's settings, and the machine's limits. Knows flags by name."""

import resource

from engine.core.errors import ConfigError
from traces.checked import one_of
from traces.client.figures import BenchSettings
from traces.client.target import ENDPOINTS, Endpoint


def check_settings(settings: BenchSettings, tokens_per_word: float | None) -> Endpoint:
    """The end point, once everything has been found sound.

    Raises:
        ConfigError: a setting is out of range; the message names its flag.
    """
    for flag, value, above in (
        ("--timeout-s", settings.timeout_s, 0),
        ("--duration-s", settings.duration_s, 0),
        ("--tokens-per-word", tokens_per_word, 0),
    ):
        if value is not None and not above < value < 1e9:
            raise ConfigError(f"{flag} must be above {above}, not {value:g}")
    if not 0 <= settings.temperature <= 2:
        raise ConfigError(f"--temperature must be from 0 to 2, not {settings.temperature:g}")
    if settings.warm_up < 0:
        raise ConfigError(f"--warm-up must be 0 or more, not {settings.warm_up}")
    return one_of("--endpoint", settings.endpoint, ENDPOINTS)


def raise_open_files() -> None:
    """Lets this process have as many connections as the system allows it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
