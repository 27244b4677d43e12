"""Key files, the environment and flags: who may call, and one clear sentence about whatever is wrong with them."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from engine.core.errors import ConfigError
from gateway.tenants import Tenant, Tenants, checked_key, digest_of, load_tenants, table_of
from kilburn import app

WEB = """
[[tenants]]
name = "web"
key = "web-key-1234"
priority = -1
weight = 2
requests_per_minute = 60
tokens_per_minute = 10000
max_context = 4096
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "keys.toml"
    file.write_text(text)
    return file


def test_file_gives_each_tenant_its_terms(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"batch-key-1").hexdigest()
    more = f'[[tenants]]\nname = "batch"\nkey_sha256 = ["{digest}", "{"AB" * 32}"]\n'
    tenants = load_tenants(written(tmp_path, WEB + more), "")
    assert tenants.guarded
    assert tenants.of("web-key-1234") == Tenant(
        name="web",
        priority=-1,
        weight=2.0,
        requests_per_minute=60,
        tokens_per_minute=10_000,
        max_context=4096,
        salt="tenant:web",
    )
    assert tenants.of("batch-key-1") is tenants.all[1]
    assert [tenant.name for tenant in tenants.all] == ["web", "batch"]
    assert tenants.of("web-key-123") is None


def test_environment_and_flags_name_keys_or_number_them(tmp_path: Path) -> None:
    tenants = load_tenants(None, "alice:first-key, second-key\n third:key-here", ["bob:its-key=="])
    names = {"first-key": "alice", "second-key": "key-2", "key-here": "third", "its-key==": "bob"}
    assert {key: tenants.of(key).name for key in names} == names  # type: ignore[union-attr]
    assert load_tenants(written(tmp_path, WEB), "a:12345678").of("12345678") is not None


def test_without_keys_everybody_may_call() -> None:
    assert not load_tenants(None, " ").guarded


def test_caches_are_apart_unless_a_salt_is_shared(tmp_path: Path) -> None:
    shared = 'prefix_salt = "team"\n'
    file = written(
        tmp_path,
        f'[[tenants]]\nname="a"\nkey="key-of-a"\n{shared}'
        f'[[tenants]]\nname="b"\nkey="key-of-b"\n{shared}'
        '[[tenants]]\nname="c"\nkey="key-of-c"\n[[tenants]]\nname="team"\nkey="key-of-team"\n',
    )
    a, b, c, team = (tenant.salt for tenant in load_tenants(file, "").all)
    assert a == b
    assert len({a, c, team}) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tenants = 1", r"expected `array`, got `int` - at `\$\.tenants`"),
        ("tenants = []", "length >= 1"),
        ("", "missing required field `tenants`"),
        ("[[tenants]\n", "not valid TOML"),
        (WEB.replace("weight", "wieght"), "unknown field `wieght`"),
        (WEB.replace("weight = 2", "weight = 0"), r"> 0.0 - at `\$\.tenants\[0\]\.weight`"),
        (WEB.replace("= 60", "= 0"), ">= 1"),
        (WEB.replace('"web"', '"a b"'), "name has 1 to 64 letters"),
        (WEB.replace('"web-key-1234"', '"short"'), "8 to 512 visible ASCII"),
        (WEB.replace("key =", "key_sha256 ="), "64 hexadecimal digits"),
        (WEB.replace('key = "web-key-1234"', ""), "`web` of .* has no key"),
        (WEB + WEB, "two tenants named `web`"),
        (WEB + WEB.replace('"web"', '"two"'), "`web` and `two` have the same key"),
    ],
)
def test_bad_file_is_said_in_a_sentence_without_a_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        load_tenants(written(tmp_path, text), "")
    assert "\n" not in raised.value.message
    assert "web-key-1234" not in raised.value.message


def test_missing_file_and_binary_file_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_tenants(tmp_path / "none.toml", "")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_tenants(tmp_path / "bad.toml", "")


def test_bad_key_of_the_environment_is_said_without_it() -> None:
    with pytest.raises(ConfigError, match="KILBURN_API_KEYS: a key has") as raised:
        load_tenants(None, "hunter2")
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize("flag", ["", " ", "alice:"])
def test_a_flag_without_a_key_is_refused_and_opens_nothing(flag: str) -> None:
    with pytest.raises(ConfigError, match=r"--api-key: .*8 to 512"):
        load_tenants(None, "", [flag])


def test_table_that_the_helper_writes_is_what_the_file_takes(tmp_path: Path) -> None:
    table = table_of("alice", checked_key("kb-0123456789", "the key"))
    assert "kb-0123456789" not in table
    assert load_tenants(written(tmp_path, table), "").of("kb-0123456789").name == "alice"  # type: ignore[union-attr]


@given(
    keys=st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=4),
    asked=st.text(max_size=3),
)
def test_a_key_opens_its_own_tenant_and_no_other_text_does(keys: list[str], asked: str) -> None:
    tenants = Tenants((digest_of(key), Tenant(name=f"t{i}")) for i, key in enumerate(keys))
    for i, key in enumerate(keys):
        assert tenants.of(key) == Tenant(name=f"t{i}")
    if asked not in keys:
        assert tenants.of(asked) is None


def test_every_key_is_compared_whichever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def counted(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr("gateway.tenants.hmac.compare_digest", counted)
    tenants = Tenants((digest_of(key), Tenant(name=key)) for key in "abc")
    for key in ("a", "c", "none"):
        compared.clear()
        tenants.of(key)
        assert len(compared) == 3


def test_command_makes_a_key_and_tells_it_apart_from_its_table(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["key", "alice"])
    assert made.exit_code == 0
    secret = made.stderr.split("\n")[0]
    assert secret not in made.stdout
    tenants = load_tenants(written(tmp_path, made.stdout), "")
    assert [tenants.of(secret)] == list(tenants.all)
    given = CliRunner().invoke(app, ["key", "bob", "--stdin"], input="bobs-own-key\n")
    assert digest_of("bobs-own-key").hex() in given.stdout
    assert "bobs-own-key" not in given.output
    assert CliRunner().invoke(app, ["key", "two words"]).exit_code == 2
    assert CliRunner().invoke(app, ["key", "bob", "--stdin"], input="short\n").exit_code == 2


def test_server_does_not_start_on_a_bad_key_file(tmp_path: Path) -> None:
    file = written(tmp_path, WEB.replace("weight", "wieght"))
    refused = CliRunner().invoke(app, ["serve", "--api-keys", str(file)])
    assert refused.exit_code == 2
    assert "unknown field `wieght`" in refused.output
