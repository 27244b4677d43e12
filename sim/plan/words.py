"""What the figures and settings of a plan mean, for who sizes a fleet and has never read its code. Words alone."""

from collections.abc import Sequence
from typing import Final

from traces.report import numbers
from traces.slo import Clause, Metric, Slo

METRICS: Final[dict[Metric, str]] = {
    "ttft": "time from a request's arrival to its first token",
    "tpot": "mean time between the tokens of an answer, after the first",
    "e2e": "time from a request's arrival to its last token",
}
SETTINGS: Final = {
    "block_size": "tokens a block of KV memory",
    "token_budget": "most tokens computed in one step",
    "max_batch": "most answers worked on at once",
    "max_partial_prefills": "most prompts computed in pieces at once",
    "watermark": "share of KV memory that new requests leave free",
    "utilisation": "share of device memory in use",
    "prefix_cache": "prompts that begin alike share memory",
    "preemption": "what happens to requests when memory runs out",
    "policy": "who comes next",
    "open_plans": "steps planned ahead of the device",
    "router": "which replica gets a request",
    "kv_dtype": "number type of the KV cache",
    "rate_scale": "times the traffic",
}
"""Of the settings that a plan changes one at a time."""


def promise(clause: Clause) -> str:
    """A limit as a sentence without its end."""
    share, limit = f"{clause.percentile:g} %", numbers.ms(clause.limit_ms)
    if clause.metric == "ttft":
        return f"{share} of requests get their first token within {limit}"
    if clause.metric == "tpot":
        return f"{share} of answers have at most {limit} between tokens on average"
    return f"{share} of requests are answered in full within {limit}"


def promises(slo: Slo) -> str:
    """All of them."""
    parts = [promise(clause) for clause in slo.clauses]
    if slo.goodput is not None:
        parts.append(f"{numbers.percent(slo.goodput)} of requests keep all limits at once")
    return join(parts)


def meaning(clause: Clause) -> str:
    """Of a clause's figure."""
    return f"{METRICS[clause.metric]}; {clause.percentile:g} % of requests are at or below it"


def glossary(slo: Slo, *, users: bool) -> list[tuple[str, str]]:
    """(word, meaning) of what tables and sentences name."""
    words = [(clause.name, meaning(clause)) for clause in slo.clauses]
    words += [
        ("replica", "one copy of the model on its own devices; 3 x (2 x L4) are three replicas of two L4 each"),
        ("$/h", "US dollars for an hour of all devices, busy or not"),
        ("$/M out", f"US dollars for a million output tokens, over the whole {'run' if users else 'trace'}"),
        ("meets", "keeps every promise; misses: does not"),
    ]  # fmt: skip
    if slo.goodput is not None:
        words.append(("good", "share of requests that keep every limit at once"))
    if users:
        words.append(
            (
                "user",
                "somebody who works through sessions of the trace one after another, with its pauses",
            )
        )
    else:
        words.append(
            (
                "redraw",
                "the trace once more with other chance: each request comes never, once, or several times",
            )
        )
    return words


def join(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
