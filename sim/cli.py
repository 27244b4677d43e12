"""`kilburn replay`: flags to settings, and the summary. Heavy imports wait until the command runs; none is torch.

Exit codes: 0 ok; 1 under --lockstep, the replay parts from the recording; 2 a setting, a file or (under --strict) a row is wrong; 3 a fault of ours.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.sweep.options import HARDWARE, MODELS
from traces.flags import (
    SCHEDULER,
    BlockSize,
    KvGb,
    MaxBatch,
    MaxContext,
    MaxPartialPrefills,
    NumBlocks,
    Policy,
    TokenBudget,
    Watermark,
)

MACHINE = "Machine"
WORKLOAD = "Workload"
OUTPUT = "Output"


def _set_defaults(context: typer.Context, settings: dict[str, Any]) -> None:
    """Of the flags that are read from now on, where nobody gives them."""
    context.default_map = {**(context.default_map or {}), **settings}


def _use_preset(context: typer.Context, name: str | None) -> str | None:
    """Makes the preset's settings the defaults of the other flags."""
    if name is not None:
        from sim.presets import preset
        from traces.terminal import exit_on_error

        with exit_on_error():
            _set_defaults(context, preset(name))
    return name


def _use_recorded_settings(context: typer.Context, cost: str) -> str:
    """Makes the settings of a recording that steps are fitted to the defaults of the other flags."""
    from sim.pricing import recorded_settings
    from traces.terminal import exit_on_error

    with exit_on_error():
        _set_defaults(context, recorded_settings(cost))
    return cost


def replay(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="CSV, JSON lines or Parquet; plain or gzip; the format is recognised by content.",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[
        str,
        typer.Option(
            help=f"{MODELS}, or the path of a Hugging Face config.json.",
            rich_help_panel=MACHINE,
        ),
    ] = "Llama-3.1-8B",
    hardware: Annotated[
        str, typer.Option(help=f"{HARDWARE}, or cpu, measured now.", rich_help_panel=MACHINE)
    ] = "A100-80",
    hardware_file: Annotated[
        Path | None,
        typer.Option(help="TOML file with more hardware.", rich_help_panel=MACHINE),
    ] = None,
    block_table: Annotated[
        Path | None,
        typer.Option(
            help="Figures of python -m kernels.bench: what each block size costs.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    cost: Annotated[
        str,
        typer.Option(
            help="What a step costs: roofline; fitted:RECORDING, which also gives the settings that no flag gives; "
            "or table:FILE.csv.",
            rich_help_panel=MACHINE,
            is_eager=True,
            callback=_use_recorded_settings,
        ),
    ] = "roofline",
    dtype: Annotated[
        str,
        typer.Option(
            help="Of the weights: fp32, fp16, bf16, fp8, int8 or int4.", rich_help_panel=MACHINE
        ),
    ] = "bf16",
    kv_dtype: Annotated[
        str,
        typer.Option(
            help="Of the KV cache: fp32, fp16, bf16, fp8 or int8.", rich_help_panel=MACHINE
        ),
    ] = "bf16",
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel", "--tp", help="Devices a replica.", rich_help_panel=MACHINE
        ),
    ] = 1,
    num_blocks: NumBlocks = None,
    kv_gb: KvGb = None,
    utilisation: Annotated[
        float,
        typer.Option(
            help="Share of device memory in use, when the pool is derived.",
            rich_help_panel=MACHINE,
        ),
    ] = 0.9,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of another engine, such as vllm; flags given beside it come first.",
            rich_help_panel=SCHEDULER,
            is_eager=True,
            callback=_use_preset,
        ),
    ] = None,
    block_size: BlockSize = 16,
    watermark: Watermark = 0.01,
    max_batch: MaxBatch = 256,
    token_budget: TokenBudget = 2048,
    max_context: MaxContext = None,
    open_plans: Annotated[
        int,
        typer.Option(
            help="2: plan a step while the one before runs; 1: do not.", rich_help_panel=SCHEDULER
        ),
    ] = 2,
    prefix_cache: Annotated[
        bool,
        typer.Option(
            "--prefix-cache/--no-prefix-cache",
            help="Share blocks of equal content, where the trace has hash ids.",
            rich_help_panel=SCHEDULER,
        ),
    ] = True,
    max_partial_prefills: MaxPartialPrefills = None,
    policy: Policy = "fcfs",
    preemption: Annotated[
        str, typer.Option(help="recompute, swap or auto.", rich_help_panel=SCHEDULER)
    ] = "recompute",
    host_gb: Annotated[
        float,
        typer.Option(help="Host memory to swap to, 10^9 bytes a replica.", rich_help_panel=MACHINE),
    ] = 0.0,
    link_gb_per_s: Annotated[
        float,
        typer.Option(help="Between device and host, each direction.", rich_help_panel=MACHINE),
    ] = 25.0,
    replicas_per_link: Annotated[
        int, typer.Option(help="So many replicas share a link.", rich_help_panel=MACHINE)
    ] = 1,
    replicas: Annotated[
        int, typer.Option(help="Engines behind the router.", rich_help_panel=MACHINE)
    ] = 1,
    router: Annotated[
        str,
        typer.Option(help="round-robin, least-loaded or prefix-aware.", rich_help_panel=MACHINE),
    ] = "round-robin",
    allocator: Annotated[
        str,
        typer.Option(
            help="paged; for comparison one contiguous run a sequence: max, pow2 or oracle.",
            rich_help_panel=SCHEDULER,
        ),
    ] = "paged",
    batching: Annotated[
        str,
        typer.Option(
            help="continuous; for comparison static: batch after batch.", rich_help_panel=SCHEDULER
        ),
    ] = "continuous",
    beam_width: Annotated[
        int | None,
        typer.Option(
            help="Hypotheses of a beam search for each answer; else sampled.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    num_sequences: Annotated[
        int, typer.Option("--n", help="Answers to each prompt.", rich_help_panel=WORKLOAD)
    ] = 1,
    limit: Annotated[
        int | None,
        typer.Option(help="Only the first N requests.", metavar="N", rich_help_panel=WORKLOAD),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="poisson:RATE, gamma:RATE:CV, weibull:RATE:CV, every:SECONDS or at-once, instead of "
            "the recorded times.",
            rich_help_panel=WORKLOAD,
        ),
    ] = None,
    open_loop: Annotated[
        bool,
        typer.Option(
            "--open-loop",
            help="Send requests of sessions at their recorded times.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    rate_scale: Annotated[
        float,
        typer.Option(help="So many times the requests in the same span.", rich_help_panel=WORKLOAD),
    ] = 1.0,
    time_scale: Annotated[
        float,
        typer.Option(help="Arrivals so many times as far apart.", rich_help_panel=WORKLOAD),
    ] = 1.0,
    system_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of a prompt that is put before every request.", rich_help_panel=WORKLOAD
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of whatever is drawn.", rich_help_panel=WORKLOAD)] = 0,
    until_s: Annotated[
        float | None,
        typer.Option(help="Stop at this simulated second.", rich_help_panel=WORKLOAD),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a trace with a bad row.", rich_help_panel=WORKLOAD),
    ] = False,
    lockstep: Annotated[
        bool,
        typer.Option(
            "--lockstep",
            help="TRACE is a recording: make its calls again, and let the twin make them from its inputs; "
            "the settings are the recording's.",
            rich_help_panel=WORKLOAD,
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(help="Write every figure to FILE.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a report to FILE, one page that needs nothing else; JSON and CSV lie beside it.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Write every figure and every request as CSV files to DIR.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Record every call and decision to FILE, gzip if it ends in .gz, for kilburn inspect, --lockstep and --cost "
            "fitted:FILE; steps are simulated one by one, so it takes longer.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    record_replica: Annotated[
        int,
        typer.Option(
            help="Which replica --record records, from 0.", metavar="N", rich_help_panel=OUTPUT
        ),
    ] = 0,
) -> None:
    """Replay a trace through the scheduler on simulated hardware."""
    from rich.console import Console

    from sim.config import build_config
    from sim.recorder import Recording, check_recording
    from sim.replay import replay_in_full, resolve
    from sim.report.terminal import render
    from traces.figures import write_figures
    from traces.formats import open_trace
    from traces.outputs import check_outputs
    from traces.terminal import exit_on_error, with_progress

    if lockstep:
        from sim.lockstep import replay_lockstep

        with exit_on_error():
            code = replay_lockstep(trace, typer.echo)
        raise typer.Exit(code)
    with exit_on_error():
        check_outputs(json, html, record, folder=csv)
        config = build_config(
            model=model,
            hardware=hardware,
            cost=cost,
            dtype=dtype,
            kv_dtype=kv_dtype,
            tensor_parallel=tensor_parallel,
            num_blocks=num_blocks,
            kv_gb=kv_gb,
            utilisation=utilisation,
            block_size=block_size,
            watermark=watermark,
            max_batch=max_batch,
            token_budget=token_budget,
            max_context=max_context,
            open_plans=open_plans,
            prefix_cache=prefix_cache,
            max_partial_prefills=max_partial_prefills,
            policy=policy,
            preemption=preemption,
            host_gb=host_gb,
            link_gb_per_s=link_gb_per_s,
            replicas_per_link=replicas_per_link,
            replicas=replicas,
            router=router,
            allocator=allocator,
            batching=batching,
            beam_width=beam_width,
            num_sequences=num_sequences,
            limit=limit,
            arrivals=arrivals,
            open_loop=open_loop,
            rate_scale=rate_scale,
            time_scale=time_scale,
            system_tokens=system_tokens,
            seed=seed,
            until_s=until_s,
        )
        recording = Recording(record, record_replica) if record is not None else None
        if recording is not None:
            check_recording(recording, config, trace)
        resolved = resolve(config, hardware_file, block_table)
        rows = open_trace(trace, strict=strict)
        report, run = replay_in_full(
            rows, resolved, lambda requests: with_progress(requests, "replaying"), recording
        )
        if html is not None:
            from sim.report.write import write_page
            from traces.shaping import hash_block_tokens, shaped

            write_page(
                html,
                report,
                run,
                resolved,
                lambda: with_progress(shaped(open_trace(trace), config.shaping), "drawing"),
                hash_block_tokens(rows, config.shaping),
                json=json or html.with_suffix(".json"),
                csv=csv or html.with_name(f"{html.stem}-csv"),
            )
        else:
            if json is not None:
                write_figures(report, json)
            if csv is not None:
                from sim.report.requests import Rows
                from sim.report.write import write_csv

                write_csv(csv, report, Rows(run.ledger))
    console = Console(highlight=False)
    console.print(render(report, console.width))
    if recording is not None:
        what = f"replica {recording.replica} of {replicas}" if replicas > 1 else "the run"
        typer.echo(f"recorded {what}: kilburn inspect {recording.path}")
