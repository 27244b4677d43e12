"""Fits the roofline's constants to published measurements, and says how far off each is, and each card that a fit has not seen.

`benchmarks/published_steps.toml` holds the points, `benchmarks/published_cards.toml` the datasheets of cards that the twin does not list. The
fit is bounded least squares of logarithms of predicted over measured, with a robust loss, since published figures vary; each constant is
drawn towards a prior of physics or general experience with a stated width, so that a few points cannot push it anywhere. A card's points
count together as the square root of their number. Prints tables; `--json` writes them.

`Efficiency`'s own values are what a fit gave when they were frozen, rounded; `--check` leaves them as they are and prints the errors alone.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks._published import Aside, Case, load_cases, predict
from sim.roofline import Efficiency

SPREAD = 0.07
"""Of a published figure, as a logarithm: what two people find who measure the same."""
PRIORS = {
    # field: (value, width as a logarithm, least, most)
    "linear_compute": (0.70, 0.10, 0.4, 1.0),
    "ramp_tokens": (64, 0.40, 8, 256),
    "attention_compute": (0.50, 0.25, 0.2, 1.0),
    "power_exponent": (0.17, 0.50, 0.01, 0.333),
    "unhidden": (0.20, 0.50, 0.01, 1.0),
    "memory": (0.92, 0.04, 0.7, 0.98),
    "kv_memory": (0.85, 0.10, 0.5, 0.98),
    "link": (0.75, 0.15, 0.3, 1.0),
    "collective_us": (10, 0.40, 2, 60),
    "pcie_collective_us": (30, 0.50, 5, 200),
    "kernel_cycles": (10_000, 0.50, 2_000, 30_000),
    "step_us": (200, 0.50, 20, 1000),
    "host_step_us": (600, 0.60, 50, 4000),
    "host_sequence_us": (8, 0.50, 1, 60),
    # Of `Aside`, not of the twin.
    "best_shape": (0.85, 0.10, 0.5, 1.0),
    "v0_host": (2.0, 0.50, 1.0, 8.0),
}
NAMES = tuple(PRIORS)


def rates_of(values: NDArray[np.float64]) -> tuple[Efficiency, Aside]:
    """The constants of a vector of logarithms."""
    named = dict(zip(NAMES, np.exp(values).tolist(), strict=True))
    aside = Aside(**{name: named.pop(name) for name in Aside.__struct_fields__})
    return msgspec.structs.replace(Efficiency(), **named), aside


def errors(cases: list[Case], rates: Efficiency, aside: Aside) -> NDArray[np.float64]:
    """Logarithms of predicted over measured; of a rate the other way round, so that slower than measured is above zero."""
    signs = [-1 if case.point.kind in ("throughput", "matmul") else 1 for case in cases]
    ratios = [predict(case, rates, aside) / case.point.measured for case in cases]
    return np.array(signs) * np.log(ratios)


def fit(cases: list[Case]) -> tuple[Efficiency, Aside]:
    """The constants nearest to the points and to their priors."""
    values, widths, least, most = (
        np.array(column, float) for column in zip(*PRIORS.values(), strict=True)
    )
    prior = np.log(values)
    counts = Counter(case.run.card for case in cases)
    weights = np.array([counts[case.run.card] ** -0.25 for case in cases]) / SPREAD

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(
            [_robust(weights * errors(cases, *rates_of(x))), (x - prior) / widths]
        )

    found = least_squares(
        residuals, prior, bounds=(np.log(least), np.log(most)), diff_step=1e-3, xtol=1e-4, ftol=1e-4
    )
    return rates_of(found.x)


def _robust(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Residuals whose squares grow like their size where they are large; priors stay squares."""
    return np.sign(residuals) * np.sqrt(2 * (np.sqrt(1 + residuals**2) - 1))


def left_out(cases: list[Case]) -> dict[str, NDArray[np.float64]]:
    """Of each card, the errors of its points by constants that were fitted without it."""
    found = {}
    for card in sorted({case.run.card for case in cases}):
        seen = [case for case in cases if case.run.card != card]
        unseen = [case for case in cases if case.run.card == card]
        found[card] = errors(unseen, *fit(seen))
    return found


def _percent(log: float) -> float:
    return round(100 * (float(np.exp(log)) - 1), 1)


def summary(found: NDArray[np.float64]) -> dict[str, float]:
    """Number, median, median of sizes and largest of errors, in per cent of the measured."""
    sizes = [abs(_percent(e)) for e in found]
    return {
        "points": len(found),
        "median_percent": median(_percent(e) for e in found),
        "median_size_percent": median(sizes),
        "largest_percent": max(sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="errors of the frozen constants only")
    args = parser.parse_args()
    cases = load_cases()
    rates, aside = (Efficiency(), Aside()) if args.check else fit(cases)
    found = errors(cases, rates, aside)
    rows = []
    print(
        f"{'card':13} {'model':15} {'type':5} {'engine':20} {'load':28} {'measured':>9} {'predicted':>9} {'slower by':>9}"
    )
    for case, error in zip(cases, found.tolist(), strict=True):
        run, point = case.run, case.point
        predicted = predict(case, rates, aside)
        print(
            f"{run.card:13} {run.model:15} {run.dtype:5} {run.engine:20} {point.load:28} "
            f"{point.measured:9.6g} {predicted:9.4g} {_percent(error):+8.1f} %"
        )
        rows.append(
            {
                "card": run.card,
                "model": run.model,
                "dtype": run.dtype,
                "engine": run.engine,
                "tensor_parallel": run.tensor_parallel,
                "load": point.load,
                "measured": point.measured,
                "predicted": round(predicted, 4),
                "slower_by_percent": _percent(error),
                "source": run.source,
            }
        )
    print("\nconstant              prior      value")
    for name in NAMES:
        value = getattr(aside if hasattr(aside, name) else rates, name)
        print(f"{name:20} {PRIORS[name][0]:6g} {value:10.4g}")
    result = {
        "constants": msgspec.to_builtins(rates) | msgspec.to_builtins(aside),
        "points": rows,
        "all": summary(found),
    }
    near = sum(abs(row["slower_by_percent"]) <= 10 for row in rows)
    print("\nall points:", result["all"], f"within 10 %: {near}")
    if not args.check:
        print(
            f"\nfitted without it {'points':>7} {'median':>8} {'of sizes':>9} {'largest':>8}   with it: median, of sizes, largest"
        )
        cards = {}
        for card, unseen in left_out(cases).items():
            mine = summary(
                np.array([e for c, e in zip(cases, found, strict=True) if c.run.card == card])
            )
            cards[card] = {"unseen": summary(unseen), "seen": mine}
            figures = [*list(summary(unseen).values()), *list(mine.values())[1:]]
            print(f"{card:17} {figures[0]:7d}", *(f"{f:+8.1f}" for f in figures[1:]))
        result["left_out"] = cards
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
