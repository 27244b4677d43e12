"""The machines that the twin can be: peak arithmetic, memory bandwidth and size, the link between devices, price. Knows no model.

Datasheet figures come from `hardware.toml`; `cpu` is measured when asked for, with NumPy.
"""

import os
import time
import tomllib
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from engine.core.errors import ConfigError
from traces.checked import why_unread
from traces.names import find_name

CPU: Final = "cpu"
DTYPE_BYTES: Final = {
    "fp32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.51953125,
}
"""Of one number. `int4`: as AWQ and GPTQ store it, groups of 128 share a scale of 16 bits and a zero point of 4."""
QUANTISED: Final = ("fp8", "int8", "int4")
"""Types of which checkpoints keep embeddings, output head and norms in 16 bits."""
WIDER: Final = {"int4": "bf16", "int8": "bf16", "fp8": "bf16", "fp16": "fp32", "bf16": "fp32"}
"""What a machine computes in when it has no units for a type."""

Positive = Annotated[float, Meta(ge=1e-6, le=1e9)]
"""A figure of a device, in whatever its field counts: far wider than any device's, and finite."""


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. `measured` figures are what programs reach; others are datasheet peaks."""

    name: str
    memory_mib: Annotated[int, Meta(ge=1, le=1 << 30)]
    memory_gb_per_s: Positive
    """10^9 bytes a second."""
    peak_tflops: dict[str, Positive]
    """Dense, by number type, 10^12 a second; a multiply-add counts two."""
    source: str
    measured: bool = False
    watts: Positive | None = None
    """What the board may draw; None: not known."""
    clock_mhz: Positive | None = None
    """Of the processors, as the peak is stated; None: not known."""
    link: Literal["nvlink", "fabric", "pcie"] = "pcie"
    """What joins the devices of one machine."""
    link_gb_per_s: Positive | None = None
    """Of one device, each direction, 10^9 bytes a second."""
    usd_per_hour: Positive | None = None
    """Of one device."""
    price_date: str = ""
    price_source: str = ""
    """Kind of price, and whose."""

    def __post_init__(self) -> None:
        if self.usd_per_hour is not None and not (self.price_date and self.price_source):
            raise ValueError("usd_per_hour needs price_date and price_source beside it")

    @property
    def memory_bytes(self) -> int:
        """Device memory that programs can allocate from."""
        return self.memory_mib << 20

    def peak_flops(self, dtype: str) -> float:
        """Peak operations a second in `dtype`, or in the next wider type that the device has units for.

        Raises:
            ConfigError: the device lists no such type and no wider one.
        """
        kind: str | None = dtype
        while kind is not None:
            if kind in self.peak_tflops:
                return self.peak_tflops[kind] * 1e12
            kind = WIDER.get(kind)
        raise ConfigError(
            f"hardware {self.name!r} lists no peak_tflops for {dtype!r} or a wider type; "
            f"it lists {', '.join(self.peak_tflops)}"
        )


def stored_bytes(dtype: str) -> tuple[float, float]:
    """Bytes of a number: (in the matrices of layers, in embeddings, output head and norms)."""
    return DTYPE_BYTES[dtype], 2.0 if dtype in QUANTISED else DTYPE_BYTES[dtype]


def load_hardware_table(text: str, where: str) -> dict[str, Hardware]:
    """Entries of a TOML table by name.

    Raises:
        ConfigError: not TOML, or an entry lacks a field, or has a wrong one; says which.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    table = {}
    for name, entry in data.items():
        if not isinstance(entry, dict):
            raise ConfigError(f"{where}: {name} must be a table, such as [H100]")
        try:
            table[name] = msgspec.convert({**entry, "name": name}, Hardware)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: [{name}]: {error}") from None
        unknown = [dtype for dtype in table[name].peak_tflops if dtype not in DTYPE_BYTES]
        if unknown:
            raise ConfigError(
                f"{where}: [{name}]: peak_tflops has {unknown[0]!r}, known are {', '.join(DTYPE_BYTES)}"
            )
    return table


def find_hardware(name: str, extra: Path | None = None) -> Hardware:
    """The machine of that name: from `extra`, a TOML file of the built-in one's shape, else built in, else `cpu`, measured now.

    Raises:
        ConfigError: the name is not known, or `extra` cannot be read.
    """
    built_in = resources.files("sim").joinpath("hardware.toml").read_text(encoding="utf-8")
    table = load_hardware_table(built_in, "hardware.toml")
    if extra is not None:
        try:
            text = extra.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the hardware file {extra} cannot be read: {why_unread(error)}"
            ) from None
        table |= load_hardware_table(text, str(extra))
    if name.casefold() == CPU and CPU not in table:
        return measure_cpu()
    return find_name(
        "hardware", name, table, f", {CPU} (measured now), and those of a --hardware-file"
    )


@cache
def measure_cpu(repeats: int = 5) -> Hardware:
    """This machine, in under two seconds, once a process: the best of `repeats` float32 matrix products and of reads of a large array.

    The bandwidth is that of one thread of NumPy reading; products use the threads that NumPy's BLAS uses.
    """
    rng = np.random.default_rng(0)
    size = 1024
    a = rng.random((size, size), dtype=np.float32)
    b = rng.random((size, size), dtype=np.float32)
    out = np.empty_like(a)
    words = np.ones(16 << 20, dtype=np.float32)
    np.matmul(a, b, out=out)
    product_s = min(_seconds(lambda: np.matmul(a, b, out=out)) for _ in range(repeats))
    read_s = min(_seconds(lambda: words.max()) for _ in range(repeats))
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return Hardware(
        name=CPU,
        memory_mib=memory_mib,
        memory_gb_per_s=words.nbytes / read_s / 1e9,
        peak_tflops={"fp32": 2 * size**3 / product_s / 1e12},
        source="measured on this machine with NumPy just before the replay",
        measured=True,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
