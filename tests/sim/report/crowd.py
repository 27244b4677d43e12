"""A trace whose requests outgrow a small pool, so that some are preempted and one can never run."""

from pathlib import Path

TIGHT = {"num_blocks": 40, "watermark": 0.0}
FLAGS = ("--num-blocks", "40", "--watermark", "0")


def crowd(folder: Path) -> Path:
    """Thirty requests within three seconds, each up to 10 of 40 blocks, and one of 50 blocks."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i in range(30):
        lines.append(f"2024-05-02 10:00:0{i // 10}.{i % 10}00000,{40 + i},{70 + i % 7}")
    lines.append("2024-05-02 10:00:03.500000,700,100")
    path = folder / "crowd.csv"
    path.write_text("\n".join(lines) + "\n")
    return path
