// Changes that are shown as they happen, each short and once: on a sheet above the map, in groups that share one moment.
// Counts what it was asked for; under `prefers-reduced-motion` it is asked for nothing, and the state alone tells.
"use strict";
KilburnView.Motion = (() => {
  const LENGTH_MS = { flash: 400, copy: 500, evict: 600, out: 700, in: 700, drop: 600 };
  const MOST_GROUPS = 200;

  class Motion {
    constructor() {
      this.groups = [];
      this.asked = { flash: 0, copy: 0, evict: 0, out: 0, in: 0, drop: 0 };
    }

    // `cells`: [frame, request] each, or [source, target] for a copy.
    ask(kind, cells, now) {
      if (!cells.length) return;
      this.asked[kind] += cells.length;
      this.groups.push({ kind, cells, start: now });
      if (this.groups.length > MOST_GROUPS) this.groups.splice(0, this.groups.length - MOST_GROUPS);
    }

    get busy() { return this.groups.length > 0; }

    // Kinds that are on the sheet at this moment.
    get kinds() { return [...new Set(this.groups.map((group) => group.kind))]; }

    clear() { this.groups = []; }

    draw(g, map, now) {
      this.groups = this.groups.filter(({ kind, start }) => now - start < LENGTH_MS[kind]);
      for (const { kind, cells, start } of this.groups) {
        const t = Math.max(0, (now - start) / LENGTH_MS[kind]);
        this[kind](g, map, cells, t, 1 - (1 - t) * (1 - t));
      }
      g.globalAlpha = 1;
    }

    flash(g, map, cells, t) {
      const s = map.size - 1;
      g.globalAlpha = (1 - t) * (1 - t);
      g.fillStyle = map.colours.sheet;
      for (const [frame] of cells) { const [x, y] = map.place(frame); g.fillRect(x, y, s, s); }
      if (s < 6) return;
      g.globalAlpha = 1 - t;
      g.strokeStyle = map.colours.ink;
      g.lineWidth = 1.5;
      for (const [frame] of cells) { const [x, y] = map.place(frame); g.strokeRect(x + 0.75, y + 0.75, s - 1.5, s - 1.5); }
    }

    evict(g, map, cells, t) {
      const colours = { ...map.colours, cached: map.colours.ink };
      g.globalAlpha = 1 - t;
      for (const [frame] of cells) {
        const [x, y] = map.place(frame);
        KilburnView.drawCell(g, colours, x, y, map.size, KilburnView.CACHED, -1);
      }
    }

    // Recompute: what the victim had shrinks away.
    drop(g, map, cells, t, ease) {
      const s = map.size - 1, shrink = (s / 2) * ease;
      g.globalAlpha = 1 - t * t;
      g.fillStyle = map.colours.accent;
      for (const [frame] of cells) { const [x, y] = map.place(frame); g.fillRect(x + shrink, y + shrink, s - 2 * shrink, s - 2 * shrink); }
    }

    out(g, map, cells, t, ease) { this.slide(g, map, cells, t * t, 1 - 0.6 * t); }

    in(g, map, cells, t, ease) { this.slide(g, map, cells, 1 - ease, 0.4 + 0.6 * t); }

    // Between a frame's place and the edge, where the host's memory is.
    slide(g, map, cells, away, alpha) {
      const s = map.size - 1;
      g.globalAlpha = alpha;
      g.strokeStyle = map.colours.sheet;
      g.lineWidth = 1;
      for (const [frame, request] of cells) {
        const [x, y] = map.place(frame), left = x + (map.width - s - x) * away;
        g.fillStyle = request >= 0 ? map.colours.owner(request) : map.colours.ink;
        g.fillRect(left, y, s, s);
        if (s > 5) g.strokeRect(left + 0.5, y + 0.5, s - 1, s - 1);
      }
    }

    copy(g, map, cells, t, ease) {
      const half = (map.size - 1) / 2, stroke = (line, colour) => { g.lineWidth = line; g.strokeStyle = colour; g.stroke(); };
      for (const [source, target] of cells) {
        const [x, y] = map.place(source), [u, v] = map.place(target);
        g.globalAlpha = 1 - t * t * t;
        g.beginPath(); g.moveTo(x + half, y + half); g.lineTo(u + half, v + half);
        stroke(5, map.colours.sheet);
        stroke(2, map.colours.ink);
        g.beginPath(); g.rect(u - 1, v - 1, map.size + 1, map.size + 1);
        stroke(2, map.colours.ink);
        g.beginPath(); g.arc(x + half + (u - x) * ease, y + half + (v - y) * ease, Math.max(4, half * 0.6), 0, 7);
        stroke(3, map.colours.sheet);
        g.fillStyle = map.colours.ink;
        g.fill();
      }
    }
  }

  return Motion;
})();
