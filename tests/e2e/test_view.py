"""The view by itself: states are told apart whatever colours a person sees, and a delta costs what it changes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.e2e.browser import needs_browser
from traces.viewer.assets import view_script, view_style

pytestmark = needs_browser

# Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB; the last sees no colour at all.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
    "achromatopsia": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
SIZES = [4, 6, 8, 13, 28]
OWNERS = 6
FIRST, SECOND = np.triu_indices(5, 1)
DRAW = """([sizes, owners]) => {
  const colours = KilburnView.palette(), canvas = document.createElement("canvas");
  const g = canvas.getContext("2d"), out = {};
  canvas.width = canvas.height = 32;
  for (const size of sizes) for (let state = 0; state < 5; state++) for (let owner = 0; owner < owners; owner++) {
    KilburnView.drawCell(g, colours, 0, 0, size, state, state === 0 || state === 1 ? -1 : owner);
    out[[size, state, owner]] = [...g.getImageData(0, 0, size - 1, size - 1).data];
  }
  return out;
}"""


@pytest.fixture
def bare(chromium):
    """A page with the view's script and style and one empty map."""

    def build(scheme: str = "light"):
        context = chromium.new_context(
            viewport={"width": 1440, "height": 900}, color_scheme=scheme, device_scale_factor=1
        )
        contexts.append(context)
        page = context.new_page()
        page.set_content(
            f"<style>{view_style()}</style><div id=map></div><script>{view_script()}</script>"
        )
        return page

    contexts: list = []
    yield build
    for context in contexts:
        context.close()


def luminance(pixels: list[int], vision: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative luminance (WCAG) of each pixel as that vision sees it."""
    rgb = np.array(pixels).reshape(-1, 4)[:, :3] / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.clip(linear @ vision.T, 0, 1) @ np.array([0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_states_differ_in_lightness_whatever_colours_one_sees(bare, scheme: str) -> None:
    """In every pair of states a tenth of the cell's pixels differ by a contrast of 1.25, for every hue and kind of vision."""
    drawn = bare(scheme).evaluate(DRAW, [SIZES, OWNERS])
    alike = []
    for vision, matrix in VISIONS.items():
        for size in SIZES:
            for owner in range(OWNERS):
                cells = [luminance(drawn[f"{size},{state},{owner}"], matrix) for state in range(5)]
                one, other = np.stack(cells)[FIRST], np.stack(cells)[SECOND]
                ratio = (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)
                for pair in np.flatnonzero((ratio >= 1.25).mean(axis=1) < 0.1):
                    alike.append((vision, size, owner, FIRST[pair], SECOND[pair]))
    assert alike == []


def test_text_and_controls_have_the_contrast_that_wcag_asks_for(bare) -> None:
    for scheme in ("light", "dark"):
        page = bare(scheme)

        def tone(name: str, page=page) -> float:
            rgb = page.evaluate(
                f"""(() => {{ document.body.style.color = "var(--{name})";
                return getComputedStyle(document.body).color.match(/\\d+/g).map(Number); }})()"""
            )
            return float(luminance([*rgb, 255], VISIONS["normal"])[0])

        def contrast(a: str, b: str, tone=tone) -> float:
            low, high = sorted([tone(a), tone(b)])
            return (high + 0.05) / (low + 0.05)

        for ink in ("ink", "quiet", "accent"):
            for ground in ("paper", "sheet"):
                assert contrast(ink, ground) >= 4.5, (scheme, ink, ground)
        assert contrast("quiet", "cell") >= 4.5, scheme
        assert contrast("edge", "paper") >= 3, scheme


def test_delta_draws_only_what_it_changed(bare) -> None:
    page = bare()
    drawn = page.evaluate("""async () => {
      const map = new KilburnView.BlockMap(document.querySelector("#map")), frame = () => new Promise(requestAnimationFrame);
      map.apply({ total: 20000, runs: [0, 20000, 0, 0, -1, -1, -1] });
      await frame(); await frame();
      const drawn = [], cell = map.cell.bind(map);
      map.cell = (at) => { drawn.push(at); cell(at); };
      map.apply({ runs: [100, 3, 2, 1, 7, 0, 0, 9000, 2, 1, 0, -1, -1, -1] });
      map.apply({ runs: [101, 1, 3, 2, 7, 0, 1] });
      await frame(); await frame();
      return drawn;
    }""")
    assert sorted(drawn) == [100, 101, 102, 9000, 9001]
