"""What a replay's figures leave out, in sentences; only those that bear on the replay at hand. Knows settings and formats."""

from sim.report.figures import Resolved


def biases(resolved: Resolved, trace_format: str, hash_block_tokens: int) -> list[str]:
    """Sentences about a replay of a trace of this format, whose hash ids cover so many tokens each (0: it has none)."""
    settings = resolved.settings
    said = [
        f"Step times are modelled ({resolved.cost_model}), not measured; every decision of scheduler and block manager is the live engine's own code.",
        "Times are the server's: no network, no tokenizer, no queue in front of the scheduler.",
        "Every answer has exactly the length that the trace says; nobody leaves early.",
    ]
    if hash_block_tokens and settings.prefix_cache:
        said.append(
            f"Prefixes are shared as far as the trace's hash ids say ({hash_block_tokens} tokens each); generated tokens have no id, so a next turn that repeats an answer misses it in the cache."
        )
    elif settings.prefix_cache:
        said.append(
            "The trace does not say which prompts begin alike, so nothing is shared; a real server with a prefix cache would do better."
        )
    if trace_format == "mooncake":
        said.append(
            "Arrivals of this trace lie on ticks of 3 s: about ten requests come at one instant, which lengthens the wait for first tokens."
        )
    if trace_format == "sessions":
        said.append(
            "Sessions are a closed loop: a slower machine is also asked less often. When each session begins was supplied, not recorded."
        )
    if trace_format == "recording":
        said.append(
            "Lengths are those that the recorded server generated; a request of several answers counts as one of the longest."
        )
    shaping = settings.shaping
    if shaping.arrivals is not None:
        said.append(
            f"Arrival times were drawn ({shaping.arrivals}, seed {shaping.seed}), not recorded."
        )
    if shaping.rate_scale != 1 or shaping.time_scale != 1:
        said.append(
            f"The load was scaled (rate × {shaping.rate_scale:g}, gaps × {shaping.time_scale:g}); a real service that grows also changes its mix."
        )
    if settings.beam_width is not None:
        said.append(
            f"Beam search over {settings.beam_width} hypotheses is modelled: each goes on with one drawn from its beam, all equally likely."
        )
    if settings.allocator != "paged":
        said.append(
            f"Memory is contiguous (reservation: {settings.allocator}, placed by a buddy allocator), as a baseline; no engine of ours works so."
        )
    if settings.until_s is not None:
        said.append(
            f"The run was cut off at {settings.until_s:g} s; what was open then counts as unfinished."
        )
    return said
