"""Reads a compiled kernel's machine code: registers, spills, and how wide each source line's global loads are.

Uses cuobjdump and nvdisasm, which Triton's wheel carries. Knows SASS; knows no kernel.
"""

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
LINE = re.compile(r'//## File "(?P<file>[^"]+)", line (?P<line>\d+)')
INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(?P<op>[A-Z][A-Z0-9_]*(?:\.\w+)*)"
)


class MachineCode(NamedTuple):
    """What matters of one kernel's code. `loads`: (file name, line) to the bytes of each global load instruction there."""

    registers: int
    stack_bytes: int
    local_instructions: int
    """Loads and stores of local memory: spills, or arrays that the compiler could not keep in registers."""
    loads: dict[tuple[str, int], list[int]]


def run_tool(tool: str, *args: str) -> str:
    """The standard output of one of the tools. Raises CalledProcessError where it fails."""
    done = subprocess.run([TOOLS / tool, *args], capture_output=True, text=True, check=True)
    return done.stdout


def load_bytes(op: str) -> int | None:
    """Bytes a thread loads with one global load instruction; None for other instructions."""
    name, *parts = op.split(".")
    if name not in ("LDG", "LDGSTS"):
        return None
    widths = [int(p) // 8 for p in parts if p in ("64", "128", "256")]
    narrow = [bytes_ for p, bytes_ in (("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)) if p in parts]
    return (widths or narrow or [4])[0]


def inspect(cubin: bytes) -> MachineCode:
    """Reads one cubin with one kernel in it. A load belongs to the innermost source line that it comes from."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = run_tool("cuobjdump", "-res-usage", str(path))
        listing = run_tool("nvdisasm", "-g", "-c", str(path))
    registers, stack = (int(re.findall(rf"{key}:(\d+)", usage)[-1]) for key in ("REG", "STACK"))
    loads: dict[tuple[str, int], list[int]] = defaultdict(list)
    local = 0
    place = ("", 0)
    for text in listing.splitlines():
        if where := LINE.search(text):
            place = (Path(where["file"]).name, int(where["line"]))
        elif found := INSTRUCTION.search(text):
            local += found["op"].split(".")[0] in ("LDL", "STL")
            if (width := load_bytes(found["op"])) is not None:
                loads[place].append(width)
    return MachineCode(registers, stack, local, dict(loads))
