"""Keys that change while the server runs: read again when it is told to, or left as they are with the reason in the log."""

import logging
from collections.abc import Callable

from engine.core.errors import ConfigError
from gateway.tenants import Tenants

LOG = logging.getLogger("kilburn.keys")


def reread(tenants: Tenants, load: Callable[[], Tenants]) -> None:
    """Gives `tenants` what `load` gives. Requests that run go on, also those of a key that is gone."""
    try:
        tenants.renew(load())
    except ConfigError as error:
        LOG.error("the keys stay as they were: %s", error.message)
    else:
        LOG.warning("the keys were read again; tenants: %s", ", ".join(t.name for t in tenants.all))
