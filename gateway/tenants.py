"""Who may call: tenants and their keys, from a file, the environment or flags. Keys are held as digests only.

Knows nothing of HTTP and nothing of how much a tenant has used. Keys are long random strings (`kilburn key` makes them), so one round
of SHA-256 hides them well; passwords that people choose would need a slow hash.
"""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from engine.core.errors import ConfigError

VARIABLE: Final = "KILBURN_API_KEYS"
"""Environment variable with keys, each as NAME:KEY or KEY, between commas or white space."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{8,512}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")

PerMinute = Annotated[int, Meta(ge=1, le=10**12)]
Digest = bytes
"""SHA-256 of a key."""


class Tenant(Struct, frozen=True, kw_only=True):
    """Somebody who may call, and on what terms."""

    name: str = ""
    """Empty: whoever calls a server without keys."""
    priority: int = 0
    """Class for the core's `priority` and `fair` policies: smaller goes first."""
    weight: float = 1.0
    """Share under the core's `fair` policy."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and answer together."""
    max_context: int | None = None
    """Most tokens of one request, where that is less than the model's."""
    salt: str = ""
    """Prefix cache blocks are shared among requests of equal salt only."""


ANYONE: Final = Tenant()
"""The one tenant of a server without keys."""


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[tenants]]` table of a key file."""

    name: str
    key: str | list[str] | None = None
    key_sha256: str | list[str] | None = None
    priority: Annotated[int, Meta(ge=-(2**20), le=2**20)] = 0
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_context: Annotated[int, Meta(ge=2)] | None = None
    prefix_salt: str | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    tenants: Annotated[list[_Table], Meta(min_length=1)]


class Tenants:
    """The keys of a server, and whose they are. Without any, everybody may call. They may be renewed while it serves."""

    def __init__(self, keys: Iterable[tuple[Digest, Tenant]] = ()) -> None:
        """Takes digests with their tenants.

        Raises:
            ConfigError: two have the same key, or different tenants the same name.
        """
        self._keys = tuple(keys)
        by_digest: dict[Digest, Tenant] = {}
        by_name: dict[str, Tenant] = {}
        for digest, tenant in self._keys:
            if by_name.setdefault(tenant.name, tenant) is not tenant:
                raise ConfigError(
                    f"there are two tenants named `{tenant.name}`; rename one, or list both keys in one table"
                )
            other = by_digest.setdefault(digest, tenant)
            if other is not tenant:
                raise ConfigError(
                    f"the tenants `{other.name}` and `{tenant.name}` have the same key; give each its own"
                )
        self.all = tuple(by_name.values())
        """Each tenant once."""
        self.on_renewal: list[Callable[[], None]] = []
        """Called after each renewal."""

    def renew(self, other: "Tenants") -> None:
        """Takes the keys and tenants of `other` in the place of its own; `other` is not used again.

        Raises:
            ConfigError: one of the two has no keys. Whether callers need one is settled when the server starts.
        """
        if self.guarded is not other.guarded:
            raise ConfigError(
                "keys cannot be taken away from a server, or given to one without any, while it runs; restart it"
            )
        self._keys, self.all = other._keys, other.all
        for told in self.on_renewal:
            told()

    @property
    def guarded(self) -> bool:
        """Whether callers need a key."""
        return bool(self._keys)

    def of(self, key: str) -> Tenant | None:
        """Whose `key` is. Takes the same time whichever key of the list it is, and if it is none. O(keys)."""
        given, found = digest_of(key), None
        for digest, tenant in self._keys:
            if hmac.compare_digest(given, digest):
                found = tenant
        return found


def digest_of(key: str) -> Digest:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_tenants(file: Path | None, listed: str, flags: Sequence[str] = ()) -> Tenants:
    """The tenants of a key file, of the text of `KILBURN_API_KEYS`, and of `--api-key` flags, all together.

    Raises:
        ConfigError: the file cannot be read, or something in it or in a key is wrong; the message says what, and never a key.
    """
    keys = [] if file is None else _read(file)
    in_variable = [text for text in re.split(r"[\s,]+", listed) if text]
    # An empty flag is a mistake, such as a variable that is not set, and must not open the server to everybody.
    for source, texts in ((VARIABLE, in_variable), ("--api-key", flags)):
        for text in texts:
            name, colon, key = text.rpartition(":")
            if not colon:
                name = f"key-{len(keys) + 1}"
            keys.append((checked_key(key, source), _tenant(_Table(name=name), source)))
    return Tenants(keys)


def _read(file: Path) -> list[tuple[Digest, Tenant]]:
    try:
        given = msgspec.convert(tomllib.loads(file.read_text("utf-8")), _File)
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {file} is not valid TOML: {error}") from None
    except msgspec.ValidationError as error:
        said = str(error)
        raise ConfigError(f"the key file {file}: {said[:1].lower()}{said[1:]}") from None
    keys: list[tuple[Digest, Tenant]] = []
    for table in given.tenants:
        source = f"the tenant `{table.name[:64]}` of {file}"
        tenant = _tenant(table, source)
        found = [checked_key(key, source) for key in _several(table.key)]
        for text in _several(table.key_sha256):
            if not _DIGEST.fullmatch(text):
                raise ConfigError(
                    f"{source}: key_sha256 must be 64 hexadecimal digits; `kilburn key` writes them"
                )
            found.append(bytes.fromhex(text))
        if not found:
            raise ConfigError(f"{source} has no key; give it key_sha256 (or key)")
        keys += [(digest, tenant) for digest in found]
    return keys


def _several(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value


def _tenant(table: _Table, source: str) -> Tenant:
    if not _NAME.fullmatch(table.name):
        raise ConfigError(
            f"{source}: a tenant's name has 1 to 64 letters, digits, dots, underscores and hyphens"
        )
    shared = table.prefix_salt
    return Tenant(
        name=table.name,
        priority=table.priority,
        weight=table.weight,
        requests_per_minute=table.requests_per_minute,
        tokens_per_minute=table.tokens_per_minute,
        max_context=table.max_context,
        salt=f"tenant:{table.name}" if shared is None else f"shared:{shared}",
    )


def checked_key(key: str, source: str) -> Digest:
    """The digest of a key that clients can send.

    Raises:
        ConfigError: it is too short or has other characters; the message names `source`.
    """
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"{source}: a key has 8 to 512 visible ASCII characters, none of them a comma"
        )
    return digest_of(key)


def table_of(name: str, digest: Digest) -> str:
    """What a key file says of a tenant with this key.

    Raises:
        ConfigError: nobody can be called that.
    """
    tenant = _tenant(_Table(name=name), "the name")
    return f'[[tenants]]\nname = "{tenant.name}"\nkey_sha256 = "{digest.hex()}"\n'
