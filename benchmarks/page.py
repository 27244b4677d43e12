"""How smoothly the block map of 20,000 frames follows a busy pool, in a real browser without a GPU.

Every 100 ms a delta changes 500 frames of random owners, with an eviction, a preemption and copies on the way. Measured in the page: the gap
between two animation frames (16.7 ms is a screen's own), and the time that taking in a delta and drawing take of it.
"""

import argparse
import json
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.e2e.browser import CHROMIUM, FLAGS
from traces.viewer.assets import view_script, view_style

FOLLOW = """async ([total, touched, seconds, everyMs]) => {
  const map = new KilburnView.BlockMap(document.querySelector("#map"));
  let seed = 1;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const owner = new Float64Array(total).fill(-1);
  map.apply({ total, runs: [0, total, 0, 0, -1, -1, -1] });
  const delta = () => {
    const runs = [], events = [["copy", random(total), random(total)], ["copy", random(total), random(total)], ["preempt", random(200), "swap"]];
    const evicted = ["evict"];
    for (let i = 0; i < touched; i++) {
      const frame = random(total), what = random(10);
      if (what < 7) runs.push(frame, 1, what < 1 ? 3 : 2, 1, random(200), 0, random(100));
      else if (what < 9) { runs.push(frame, 1, 1, 0, -1, -1, -1); evicted.push(frame); }
      else runs.push(frame, 1, 0, 0, -1, -1, -1);
    }
    return { runs, events: [...events, evicted] };
  };
  const gaps = [], draws = [], applies = [];
  const paint = map.paint.bind(map);
  map.paint = (now) => { const begin = performance.now(); paint(now); draws.push(performance.now() - begin); };
  const begin = performance.now();
  let last = begin, next = begin;
  await new Promise((done) => {
    const turn = () => {
      const now = performance.now();
      gaps.push(now - last);
      last = now;
      if (now >= next) {
        next += everyMs;
        const change = delta(), from = performance.now();
        map.apply(change);
        applies.push(performance.now() - from);
      }
      if (now - begin > 1000 * seconds) done(); else requestAnimationFrame(turn);
    };
    requestAnimationFrame(turn);
  });
  return { gaps: gaps.slice(2), draws, applies };
}"""


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--touched", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.set_content(
            f"<style>{view_style()}</style><div id=map></div><script>{view_script()}</script>"
        )
        told = page.evaluate(FOLLOW, [args.frames, args.touched, args.seconds, 100])
        chromium.close()
    figures = {
        f"{name}_ms_p{round(100 * share)}": round(percentile(told[key], share), 2)
        for name, key in (("frame", "gaps"), ("draw", "draws"), ("apply", "applies"))
        for share in (0.5, 0.95, 0.99)
    }
    figures["frames_per_s"] = round(1000 * len(told["gaps"]) / sum(told["gaps"]), 1)
    for name, value in figures.items():
        print(f"{name:16} {value:8.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
