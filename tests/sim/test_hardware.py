"""The hardware table: sourced, extensible, and plain about what it does not know."""

from datetime import date

import pytest

from engine.core.errors import ConfigError
from sim.hardware import find_hardware, measure_cpu

BUILT_IN = [
    "A100-40", "A100-80", "H100", "H200", "B200", "L4", "L40S", "RTX 4090", "RTX PRO 6000", "RTX PRO 6000 Workstation", "MI300X",
]  # fmt: skip


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_entry_has_a_source_and_bf16(name):
    hardware = find_hardware(name)
    assert "datasheet" in hardware.source or "architecture paper" in hardware.source
    assert hardware.peak_flops("bf16") > 1e14
    assert 20 < hardware.memory_bytes / 2**30 < 200
    assert hardware.usd_per_hour
    assert date.fromisoformat(hardware.price_date) > date(2026, 1, 1)
    assert (
        "list price" in hardware.price_source or "lowest marketplace offer" in hardware.price_source
    )
    assert hardware.link_gb_per_s


def test_a_type_without_units_is_computed_in_the_next_wider():
    a100, h100 = find_hardware("A100-80"), find_hardware("H100")
    assert a100.peak_flops("fp8") == a100.peak_flops("bf16")
    assert 1.99 < h100.peak_flops("fp8") / h100.peak_flops("bf16") < 2.01


def test_unknown_hardware_lists_the_known_and_the_closest():
    with pytest.raises(ConfigError, match=r"did you mean H100.*A100-40.*cpu"):
        find_hardware("H10O")


def test_a_file_extends_and_overrides_the_table(tmp_path):
    path = tmp_path / "more.toml"
    path.write_text(
        '[H100]\nmemory_mib = 1\nmemory_gb_per_s = 1.0\npeak_tflops = {bf16 = 2}\nsource = "me"\n'
    )
    assert find_hardware("H100", path).memory_mib == 1
    assert find_hardware("L4", path) == find_hardware("L4")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[X]\nmemory_mib = 1", "memory_gb_per_s"),
        ("[X]\nmemory_mib = 0", "memory_mib"),
        ("X = 1", "must be a table"),
        ("[X", "not valid TOML"),
        (
            '[X]\nmemory_mib=1\nmemory_gb_per_s=1\npeak_tflops={tf64=1}\nsource="s"',
            "tf64",
        ),
        ('[X]\nmemory_mib=1\nmemory_gb_per_s=1\npeak_tflops={}\nsource="s"\ncores=3', "cores"),
        (
            '[X]\nmemory_mib=1\nmemory_gb_per_s=1\npeak_tflops={}\nsource="s"\nusd_per_hour=1',
            "price_date",
        ),
    ],
)
def test_a_broken_file_names_the_entry_and_the_field(tmp_path, text, words):
    path = tmp_path / "more.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        find_hardware("H100", path)


def test_this_machine_is_measured():
    cpu = measure_cpu(repeats=1)
    assert cpu.measured
    assert cpu.peak_flops("bf16") == cpu.peak_flops("fp32") > 1e9
    assert cpu.memory_gb_per_s > 0.1
