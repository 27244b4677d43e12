"""Compiles the shipped builds for an architecture that need not be here, and judges the machine code. Knows builds and verdicts.

    python -m kernels.offline --arch 90 [--only SUBSTRING] [--record FILE]
    python -m kernels.offline --arch 90 --fingerprints

prints one JSON object a build. `--record` notes the fingerprints of builds without fault in FILE, so that a test can tell in a second that
what is shipped is what was judged; `--fingerprints` prints them and compiles nothing. Faults are: a build that does not compile, a stack, local memory traffic, and a load marked `# wide` in the
kernel's source that became anything narrower than 16 bytes, or vanished from a build that contains its line's kernel.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.builds import OPTIONS, Build, shipped
from kernels.machine_code import MachineCode
from kernels.machine_code import inspect as read_machine_code
from kernels.mode import INTERPRETED

ARCHITECTURES = (80, 90, 100)
WIDE_BYTES = 16


def source_of(build: Build) -> ASTSource:
    """What Triton compiles, with the assumptions that launches with aligned tensors make."""
    constants = {k: v for k, v in build.constants.items() if k not in OPTIONS}
    aligned = [["tt.divisibility", 16]]
    attributes = {(i,): aligned for i, name in enumerate(build.signature) if name in build.aligned}
    return ASTSource(
        build.kernel,
        {**build.signature, **dict.fromkeys(constants, "constexpr")},
        constants,
        attributes,
    )


def options_of(build: Build) -> dict[str, Any]:
    """How Triton compiles it."""
    return {k: v for k, v in build.constants.items() if k in OPTIONS}


def compile_build(build: Build, arch: int) -> bytes:
    """The cubin of `build` for sm_`arch`."""
    target = GPUTarget("cuda", arch, 32)
    compiled = triton.compile(source_of(build), target=target, options=options_of(build))
    return compiled.asm["cubin"]


def fingerprint(build: Build) -> str:
    """Changes with whatever the machine code depends on but Triton and the architecture: all sources, types, constants, options."""
    text = f"{source_of(build).hash()} {sorted(options_of(build).items())}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def record(file: Path, arch: int, builds: Iterable[Build]) -> None:
    """Notes in `file` that these builds were judged without fault. Notes of another Triton are dropped."""
    notes = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if notes.get("triton") != triton.__version__:
        notes = {"triton": triton.__version__}
    notes[str(arch)] = {build.name: fingerprint(build) for build in builds}
    file.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load_lines(file: str) -> dict[int, bool]:
    """Line numbers of a source file that load, and whether they are marked `# wide`."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {i: x.endswith("# wide") for i, x in enumerate(lines, 1) if "tl.load(" in x}


def faults(build: Build, code: MachineCode) -> list[str]:
    """What is wrong with the code of `build`, one sentence each.

    A load with a default for masked elements is several lines of inline assembly, which the compiler counts as lines of source: an
    instruction belongs to the last line at or before its own that loads.
    """
    found = []
    if code.stack_bytes or code.local_instructions:
        found.append(
            f"{code.stack_bytes} bytes of stack, {code.local_instructions} local memory instructions"
        )
    path = build.kernel.fn.__code__.co_filename
    lines, name = load_lines(path), Path(path).name
    wide: list[int] = []
    for (file, line), sizes in code.loads.items():
        owner = max((x for x in lines if x <= line), default=0)
        if file == name and lines.get(owner, False):
            wide += sizes
            if min(sizes) < WIDE_BYTES:
                found.append(f"line {owner} of {name} loads {min(sizes)} bytes at a time")
    if any(lines.values()) and not wide:
        found.append(f"none of the wide loads of {name} is in the code")
    return found


def judge(build: Build, arch: int) -> dict[str, Any]:
    """One build's report: name, arch, registers, the bytes of its wide loads, and its faults."""
    report: dict[str, Any] = {"name": build.name, "arch": arch}
    try:
        code = read_machine_code(compile_build(build, arch))
    except Exception as error:
        return {**report, "faults": [f"{type(error).__name__}: {error}"]}
    return {**report, "registers": code.registers, "faults": faults(build, code)}


def main(argv: Iterable[str] | None = None) -> int:
    """Judges the builds for one architecture; 1 if any has a fault."""
    parser = argparse.ArgumentParser(
        description="Compile the shipped kernels offline and judge their code."
    )
    parser.add_argument("--arch", type=int, choices=ARCHITECTURES, required=True)
    parser.add_argument(
        "--only",
        default="",
        help="builds whose name contains this, or one of these split by commas",
    )
    parser.add_argument("--record", type=Path, help="note builds without fault in this file")
    parser.add_argument("--fingerprints", action="store_true", help="compile nothing")
    options = parser.parse_args(None if argv is None else list(argv))
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set: nothing is compiled under the interpreter")
    parts = options.only.split(",")
    chosen = [b for b in shipped(options.arch) if any(p in b.name for p in parts)]
    if not chosen:
        parser.error(f"no build's name contains {options.only!r}")
    if options.fingerprints:
        sys.stdout.write(json.dumps({b.name: fingerprint(b) for b in chosen}) + "\n")
        return 0
    clean = []
    for build in chosen:
        report = judge(build, options.arch)
        if not report["faults"]:
            clean.append(build)
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
    if options.record:
        record(options.record, options.arch, clean)
    return int(len(clean) < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
