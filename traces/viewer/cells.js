// States of a frame, the colours of the style sheet, and how one cell is drawn. The first of the view's files; fetches nothing.
"use strict";
const KilburnView = (() => {
  const FREE = 0, CACHED = 1, HELD = 2, SHARED = 3, MOVING = 4;
  const STATE_NAMES = ["free", "cached", "held", "shared", "moving"];
  const SMALL = 7; // up to so many pixels a cell's inside is drawn pixel by pixel

  // Whether the person asked for no motion.
  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Colours are read from the style sheet, so that light and dark come from one place.
  const palette = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    const hues = new Map();
    const lightness = get("--owner-l"), chroma = get("--owner-c");
    return {
      paper: get("--paper"), sheet: get("--sheet"), ink: get("--ink"), quiet: get("--quiet"), line: get("--line"),
      cell: get("--cell"), cached: get("--cached"), accent: get("--accent"), faint: get("--faint"),
      owner(request) {
        let colour = hues.get(request);
        if (!colour) {
          if (hues.size > 4096) hues.clear();
          const turn = (request * 137.508 + 190) % 360; // golden angle; the warm hues 15 to 75 are the accent's
          colour = `oklch(${lightness} ${chroma} ${((75 + (turn * 300) / 360) % 360).toFixed(1)})`;
          hues.set(request, colour);
        }
        return colour;
      },
    };
  };

  // Sets a canvas to a size in CSS pixels at the screen's own resolution; its context.
  const sharp = (canvas, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  };

  const hatch = (g, x, y, s, colour) => {
    if (s <= SMALL) {
      g.fillStyle = colour;
      for (let k = 0; k < s; k++) g.fillRect(x + k, y + s - 1 - k, 1, 1);
      return;
    }
    g.strokeStyle = colour;
    g.lineWidth = 1.25;
    g.beginPath();
    for (let k = 3; k < 2 * s - 1; k += 4) {
      const low = Math.min(k, s), rest = k - low;
      g.moveTo(x + rest, y + low);
      g.lineTo(x + low, y + rest);
    }
    g.stroke();
  };

  // Four corners and nothing between them: what is held by a transfer only.
  const brackets = (g, x, y, s, colour) => {
    const line = s > 9 ? 2 : 1, arm = Math.max(line, Math.floor(s / 3));
    g.fillStyle = colour;
    for (const right of [0, 1]) {
      for (const low of [0, 1]) {
        g.fillRect(x + right * (s - arm), y + low * (s - line), arm, line);
        g.fillRect(x + right * (s - line), y + low * (s - arm), line, arm);
      }
    }
  };

  // One frame. State is told by shape as well as by colour: shared has a ring, cached a hatch, moving four corners.
  const drawCell = (g, colours, x, y, size, state, request) => {
    const s = size - 1;
    g.fillStyle = colours.sheet;
    g.fillRect(x, y, size, size);
    if (state === FREE) {
      g.fillStyle = s > SMALL ? colours.line : colours.cell;
      g.fillRect(x, y, s, s);
      if (s > SMALL) { g.fillStyle = colours.sheet; g.fillRect(x + 1, y + 1, s - 2, s - 2); }
    } else if (state === CACHED) {
      g.fillStyle = colours.cell;
      g.fillRect(x, y, s, s);
      hatch(g, x, y, s, colours.cached);
    } else if (state === MOVING) {
      brackets(g, x, y, s, request >= 0 ? colours.owner(request) : colours.ink);
    } else {
      g.fillStyle = colours.owner(request);
      g.fillRect(x, y, s, s);
      if (state !== SHARED) return;
      const inset = s > SMALL ? Math.round(s * 0.2) : Math.floor(s / 3), line = Math.max(1, Math.round(s * 0.12));
      g.fillStyle = colours.sheet;
      g.fillRect(x + inset, y + inset, s - 2 * inset, s - 2 * inset);
      if (s <= SMALL) return;
      const inner = inset + line;
      g.fillStyle = colours.owner(request);
      g.fillRect(x + inner, y + inner, s - 2 * inner, s - 2 * inner);
    }
  };

  return { FREE, CACHED, HELD, SHARED, MOVING, STATE_NAMES, calm, dark, palette, sharp, drawCell, hatch };
})();
