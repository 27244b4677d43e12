// The block map and its strips of numbers over time: what the live page, the inspector and the reports show.
// Knows the delta format of delta.py and how to draw it; fetches nothing.
"use strict";
const KilburnView = (() => {
  const FREE = 0, CACHED = 1, HELD = 2, SHARED = 3, MOVING = 4;
  const STATE_NAMES = ["free", "cached", "held", "shared", "moving"];
  const RUN = 7;
  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  // Colours are read from the style sheet, so that light and dark come from one place.
  const palette = () => {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(name).trim();
    const hues = new Map();
    const lightness = get("--owner-l"), chroma = get("--owner-c");
    return {
      paper: get("--paper"), sheet: get("--sheet"), ink: get("--ink"), quiet: get("--quiet"), line: get("--line"),
      cell: get("--cell"), cached: get("--cached"), accent: get("--accent"),
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

  // One frame. State is told by shape as well as by colour: shared has a ring, cached a hatch, moving an outline.
  const drawCell = (g, colours, x, y, size, state, request) => {
    const s = size > 5 ? size - 1 : size - 0.5;
    g.fillStyle = colours.sheet;
    g.fillRect(x, y, size, size);
    if (state === FREE) {
      g.fillStyle = s > 7 ? colours.line : colours.cell;
      g.fillRect(x, y, s, s);
      if (s > 7) { g.fillStyle = colours.sheet; g.fillRect(x + 1, y + 1, s - 2, s - 2); }
    } else if (state === CACHED) {
      g.fillStyle = colours.cell;
      g.fillRect(x, y, s, s);
      g.strokeStyle = colours.cached;
      g.lineWidth = s > 9 ? 1.5 : 1;
      g.beginPath();
      g.moveTo(x, y + s); g.lineTo(x + s, y);
      if (s > 7) { g.moveTo(x, y + s / 2); g.lineTo(x + s / 2, y); g.moveTo(x + s / 2, y + s); g.lineTo(x + s, y + s / 2); }
      g.stroke();
    } else if (state === MOVING) {
      const line = s > 7 ? 2 : 1;
      g.strokeStyle = request >= 0 ? colours.owner(request) : colours.ink;
      g.lineWidth = line;
      g.strokeRect(x + line / 2, y + line / 2, s - line, s - line);
    } else {
      g.fillStyle = colours.owner(request);
      g.fillRect(x, y, s, s);
      if (state === SHARED) {
        const inset = Math.max(1, s * 0.18), line = Math.max(1, s * 0.13);
        g.strokeStyle = colours.sheet;
        g.lineWidth = line;
        g.strokeRect(x + inset + line / 2, y + inset + line / 2, s - 2 * inset - line, s - 2 * inset - line);
      }
    }
  };

  class BlockMap {
    // `names(request)` says what to call a request; `onHover(request or -1)` is told whose frame is looked at.
    constructor(root, { names = (request) => `request ${request}`, onHover = () => {} } = {}) {
      this.root = root;
      root.view = this;
      this.names = names;
      this.onHover = onHover;
      root.classList.add("km");
      root.innerHTML = `<div class="km-sheet"><canvas class="km-map" tabindex="0" role="application"
        aria-roledescription="block map" aria-label="Block map. Arrow keys walk the frames, Enter pins one, Escape lets go."></canvas>
        <canvas class="km-over" aria-hidden="true"></canvas></div>
        <ul class="km-legend"></ul>
        <p class="km-story" role="status"></p>`;
      this.sheet = root.querySelector(".km-sheet");
      this.sheet.style.position = "relative";
      this.canvas = root.querySelector(".km-map");
      this.over = root.querySelector(".km-over");
      this.story = root.querySelector(".km-story");
      this.total = 0;
      this.blockSize = 1;
      this.cursor = -1;
      this.pinned = -1;
      this.focusRequest = -1;
      this.dirty = new Set();
      this.moves = [];
      this.pending = false;
      this.colours = palette();
      this.legend();
      this.tell();
      this.canvas.addEventListener("pointermove", (e) => this.look(this.at(e)));
      this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) this.look(-1); });
      this.canvas.addEventListener("click", (e) => this.pin(this.at(e)));
      this.canvas.addEventListener("keydown", (e) => this.key(e));
      this.canvas.addEventListener("focus", () => { if (this.cursor < 0 && this.total) this.look(0); });
      this.canvas.addEventListener("blur", () => { if (this.pinned < 0) this.look(-1); });
      new ResizeObserver(() => this.layout()).observe(root);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        this.colours = palette();
        this.legend();
        this.redraw();
      });
    }

    // -- state ---------------------------------------------------------------------------------------------------

    apply(delta) {
      const before = [];
      if (delta.total) {
        this.total = delta.total;
        this.state = new Uint8Array(this.total);
        this.refs = new Int32Array(this.total);
        this.request = new Float64Array(this.total).fill(-1);
        this.index = new Int32Array(this.total).fill(-1);
        this.column = new Int32Array(this.total).fill(-1);
        this.others = new Map();
        this.cursor = this.pinned = -1;
        this.moves = [];
        this.layout();
      }
      const events = delta.events || [];
      const motion = !delta.total && !calm();
      const leaving = new Map();
      for (const [kind, request, mode] of events) if (kind === "preempt") leaving.set(request, mode);
      const arriving = new Set(events.filter((e) => e[0] === "swap" && e[2] === "in").map((e) => e[1]));
      const evicted = new Set(events.filter((e) => e[0] === "evict").flatMap((e) => e.slice(1)));
      const runs = delta.runs || [];
      for (let i = 0; i < runs.length; i += RUN) {
        const [first, count, state, refs, request, index, column] = runs.slice(i, i + RUN);
        for (let k = 0; k < count; k++) {
          const frame = first + k;
          const was = this.state[frame], owner = this.request[frame];
          if (motion && before.length < 600) {
            if (leaving.has(owner) && request !== owner) before.push([leaving.get(owner) === "swap" ? "out" : "drop", frame, owner]);
            else if (evicted.has(frame)) before.push(["evict", frame, owner]);
            if (arriving.has(request) && request !== owner) before.push(["in", frame, request]);
            else if (was < HELD && state >= HELD && state !== MOVING) before.push(["flash", frame, request]);
          }
          this.state[frame] = state;
          this.refs[frame] = refs;
          this.request[frame] = request;
          this.index[frame] = index;
          this.column[frame] = column < 0 ? -1 : column + k;
          this.dirty.add(frame);
        }
      }
      for (const [frame, ...holders] of delta.others || []) {
        if (holders.length) this.others.set(frame, holders); else this.others.delete(frame);
      }
      if (motion) {
        const now = performance.now();
        for (const [kind, frame, request] of before) this.moves.push({ kind, frame, request, start: now });
        for (const [kind, source, target] of events) if (kind === "copy") this.moves.push({ kind, frame: source, target, start: now });
        if (this.moves.length > 1200) this.moves.splice(0, this.moves.length - 1200);
      }
      if (delta.total) this.redraw();
      this.wake();
      const shown = this.pinned >= 0 ? this.pinned : this.cursor;
      if (shown >= 0) this.tell();
    }

    count(state) {
      let n = 0;
      for (let i = 0; i < this.total; i++) n += this.state[i] === state;
      return n;
    }

    // -- geometry ------------------------------------------------------------------------------------------------

    layout() {
      const width = this.root.clientWidth;
      if (!this.total || !width) return;
      const tall = width < 500 ? 340 : 440;
      const fit = Math.floor(Math.sqrt((width * tall) / this.total));
      this.size = Math.max(4, Math.min(22, fit));
      this.columns = Math.max(1, Math.floor(width / this.size));
      this.rows = Math.ceil(this.total / this.columns);
      const w = this.columns * this.size, h = this.rows * this.size;
      this.g = sharp(this.canvas, w, h);
      this.o = sharp(this.over, w, h);
      this.width = w;
      this.height = h;
      this.redraw();
    }

    place(frame) { return [(frame % this.columns) * this.size, Math.floor(frame / this.columns) * this.size]; }

    at(event) {
      const column = Math.floor(event.offsetX / this.size), row = Math.floor(event.offsetY / this.size);
      const frame = row * this.columns + column;
      return column >= 0 && column < this.columns && frame >= 0 && frame < this.total ? frame : -1;
    }

    // -- drawing: only what changed ------------------------------------------------------------------------------

    redraw() {
      if (!this.g) return;
      this.g.clearRect(0, 0, this.width, this.height);
      for (let frame = 0; frame < this.total; frame++) this.cell(frame);
      this.dirty.clear();
      this.wake();
    }

    cell(frame) {
      const [x, y] = this.place(frame);
      drawCell(this.g, this.colours, x, y, this.size, this.state[frame], this.request[frame]);
    }

    wake() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame((now) => this.paint(now));
    }

    paint(now) {
      this.pending = false;
      if (!this.g) return;
      for (const frame of this.dirty) this.cell(frame);
      this.dirty.clear();
      const g = this.o, s = this.size;
      g.clearRect(0, 0, this.width, this.height);
      this.moves = this.moves.filter((move) => this.animate(g, move, now));
      g.globalAlpha = 1;
      const shown = this.pinned >= 0 ? this.pinned : this.cursor;
      const request = this.focusRequest >= 0 ? this.focusRequest : shown >= 0 ? this.request[shown] : -1;
      if (request >= 0) {
        g.strokeStyle = this.colours.ink;
        g.lineWidth = 1;
        for (let frame = 0; frame < this.total; frame++) {
          if (this.request[frame] !== request && !this.holds(frame, request)) continue;
          const [x, y] = this.place(frame);
          g.strokeRect(x - 0.5, y - 0.5, s, s);
        }
      }
      if (shown >= 0) {
        const [x, y] = this.place(shown);
        g.strokeStyle = this.colours.ink;
        g.lineWidth = 2;
        g.strokeRect(x - 2, y - 2, s + 3, s + 3);
        if (this.pinned >= 0) { g.fillStyle = this.colours.ink; g.beginPath(); g.arc(x + s / 2, y - 4, 3, 0, 7); g.fill(); }
      }
      if (this.moves.length) this.wake();
    }

    holds(frame, request) {
      const others = this.others.get(frame);
      if (others) for (let i = 0; i < others.length; i += 2) if (others[i] === request) return true;
      return false;
    }

    // A short story on the sheet above the map; false when it is over.
    animate(g, move, now) {
      const length = { flash: 350, copy: 700, evict: 600, out: 700, in: 700, drop: 700 }[move.kind];
      const t = (now - move.start) / length;
      if (t >= 1) return false;
      if (t < 0) return true;
      const s = this.size, [x, y] = this.place(move.frame), ease = 1 - (1 - t) * (1 - t);
      g.globalAlpha = 1 - t;
      if (move.kind === "flash") {
        g.strokeStyle = this.colours.ink;
        g.lineWidth = 2;
        g.strokeRect(x - 1 - 3 * t, y - 1 - 3 * t, s + 1 + 6 * t, s + 1 + 6 * t);
      } else if (move.kind === "copy") {
        const [u, v] = this.place(move.target), half = s / 2;
        g.strokeStyle = g.fillStyle = this.colours.ink;
        g.lineWidth = 1.5;
        g.beginPath(); g.moveTo(x + half, y + half); g.lineTo(u + half, v + half); g.stroke();
        g.beginPath(); g.arc(x + half + (u - x) * ease, y + half + (v - y) * ease, Math.max(3, s / 3), 0, 7); g.fill();
      } else if (move.kind === "evict") {
        const grow = (s / 2) * ease;
        g.strokeStyle = this.colours.quiet;
        g.lineWidth = 2;
        g.beginPath(); g.moveTo(x, y + s); g.lineTo(x + s, y); g.stroke();
        g.strokeRect(x - grow, y - grow, s + 2 * grow, s + 2 * grow);
      } else {
        const away = move.kind === "in" ? 1 - ease : move.kind === "out" ? ease : 0;
        const left = x + (this.width - s - x) * away;
        g.globalAlpha = move.kind === "in" ? t : 1 - t;
        g.fillStyle = move.kind === "drop" ? this.colours.accent : this.colours.owner(move.request);
        const shrink = move.kind === "drop" ? (s / 2) * ease : 0;
        g.fillRect(left + shrink, y + shrink, s - 2 * shrink, s - 2 * shrink);
        if (move.kind === "out") { g.strokeStyle = this.colours.accent; g.lineWidth = 1; g.strokeRect(left + 0.5, y + 0.5, s - 1, s - 1); }
      }
      return true;
    }

    // -- looking -------------------------------------------------------------------------------------------------

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
      if (step) this.look(Math.max(0, Math.min(this.total - 1, this.cursor + step)));
      else if (event.key === "Home") this.look(0);
      else if (event.key === "End") this.look(this.total - 1);
      else if (event.key === "Enter" || event.key === " ") this.pin(this.cursor);
      else if (event.key === "Escape") this.pin(-1);
      else return;
      event.preventDefault();
    }

    look(frame) {
      if (frame === this.cursor) return;
      this.cursor = frame;
      if (this.pinned < 0) {
        this.onHover(frame >= 0 ? this.request[frame] : -1);
        this.tell();
      }
      this.wake();
    }

    pin(frame) {
      this.pinned = frame === this.pinned ? -1 : frame;
      const shown = this.pinned >= 0 ? this.pinned : this.cursor;
      this.onHover(shown >= 0 ? this.request[shown] : -1);
      this.tell();
      this.wake();
    }

    highlight(request) {
      this.focusRequest = request;
      this.wake();
    }

    describe(frame) {
      const state = STATE_NAMES[this.state[frame]];
      const refs = this.refs[frame], request = this.request[frame], column = this.column[frame];
      const parts = [`Frame ${frame} is ${state}`];
      if (request >= 0) {
        const from = column * this.blockSize;
        const sequence = this.index[frame] > 0 ? `, sequence ${this.index[frame]}` : "";
        parts.push(`${this.names(request)}${sequence}, positions ${from} to ${from + this.blockSize - 1}`);
        const others = this.others.get(frame) || [];
        const said = [];
        for (let i = 0; i < others.length; i += 2) said.push(`${this.names(others[i])}${others[i + 1] > 0 ? ` sequence ${others[i + 1]}` : ""}`);
        if (said.length) parts.push(`also ${said.join(", ")}`);
      } else if (state === "cached") parts.push("its content can be found and is kept until the room is needed");
      else if (state === "moving") parts.push("held by a transfer only");
      if (refs || request >= 0) parts.push(`${refs} reference${refs === 1 ? "" : "s"}`);
      return parts;
    }

    tell() {
      const shown = this.pinned >= 0 ? this.pinned : this.cursor;
      if (shown < 0) {
        const hint = this.total ? "Point at a frame, or walk the map with the arrow keys, to see what it holds." : "Waiting for the first map.";
        if (this.story.textContent !== hint) this.story.textContent = hint;
        return;
      }
      const [head, ...rest] = this.describe(shown);
      const text = `${head}${this.pinned >= 0 ? " (pinned)" : ""}${rest.length ? ": " : "."}${rest.join("; ")}`;
      if (this.story.textContent !== text) {
        this.story.textContent = text;
      }
      this.onHover(this.request[shown]);
    }

    legend() {
      const list = this.root.querySelector(".km-legend");
      list.replaceChildren(...[
        [FREE, "free"], [HELD, "held, hue by owner"], [SHARED, "shared"], [CACHED, "cached"], [MOVING, "moving"],
      ].map(([state, text]) => {
        const item = document.createElement("li"), swatch = document.createElement("canvas");
        const g = sharp(swatch, 14, 14);
        drawCell(g, this.colours, 0, 0, 14, state, 2);
        swatch.setAttribute("aria-hidden", "true");
        item.append(swatch, text);
        return item;
      }));
    }
  }

  // -- strips: small charts that share one time axis and one pointer -------------------------------------------------

  class Strips {
    // `specs`: {name, unit, digits, series: [{key, label, colour, area}], max}. Samples are {t, key: value}.
    constructor(root, specs, spanMs = 120000) {
      this.specs = specs;
      this.span = spanMs;
      this.samples = [];
      this.pointer = null;
      this.colours = palette();
      this.strips = specs.map((spec) => {
        const figure = document.createElement("figure");
        figure.className = "km-strip";
        figure.innerHTML = `<figcaption><span></span><span class="num"></span></figcaption><canvas role="img"></canvas>`;
        figure.querySelector("span").textContent = spec.name;
        root.append(figure);
        const canvas = figure.querySelector("canvas");
        canvas.addEventListener("pointermove", (e) => { this.pointer = e.offsetX / canvas.clientWidth; this.draw(); });
        canvas.addEventListener("pointerleave", () => { this.pointer = null; this.draw(); });
        return { spec, canvas, value: figure.querySelector(".num") };
      });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.colours = palette(); this.draw(); });
      new ResizeObserver(() => this.draw()).observe(root);
    }

    add(sample) {
      this.samples.push(sample);
      while (this.samples.length && sample.t - this.samples[0].t > this.span) this.samples.shift();
      this.draw();
    }

    draw() {
      const last = this.samples[this.samples.length - 1];
      if (!last) return;
      const begin = last.t - this.span;
      let shown = last;
      if (this.pointer !== null) {
        const wanted = begin + this.pointer * this.span;
        shown = this.samples.reduce((best, each) => (Math.abs(each.t - wanted) < Math.abs(best.t - wanted) ? each : best));
      }
      for (const { spec, canvas, value } of this.strips) {
        const width = canvas.clientWidth, height = 44;
        if (!width) continue;
        const g = sharp(canvas, width, height);
        canvas.style.width = "100%";
        const total = (s) => spec.series.reduce((sum, each) => sum + (spec.stacked ? s[each.key] || 0 : 0), 0);
        const top = spec.max ? spec.max() : Math.max(spec.least || 1, ...this.samples.map((s) => (spec.stacked ? total(s) : Math.max(...spec.series.map((each) => s[each.key] || 0)))));
        const x = (t) => ((t - begin) / this.span) * width, y = (v) => height - 1 - (v / top) * (height - 4);
        const floor = this.samples.map(() => 0);
        for (const series of spec.series) {
          const colour = series.colour(this.colours);
          g.strokeStyle = g.fillStyle = colour;
          if (series.dots) {
            for (const s of this.samples) if (s[series.key] != null) g.fillRect(x(s.t) - 1.5, y(s[series.key]) - 1.5, 3, 3);
            continue;
          }
          const upper = this.samples.map((s, i) => (spec.stacked ? floor[i] : 0) + (s[series.key] || 0));
          g.beginPath();
          this.samples.forEach((s, i) => (i ? g.lineTo(x(s.t), y(upper[i])) : g.moveTo(x(s.t), y(upper[i]))));
          if (spec.stacked) {
            for (let i = this.samples.length - 1; i >= 0; i--) g.lineTo(x(this.samples[i].t), y(floor[i]));
            g.closePath();
            g.fill();
            upper.forEach((v, i) => { floor[i] = v; });
          } else {
            g.lineWidth = 1.5;
            g.setLineDash(series.dash || []);
            g.stroke();
            g.setLineDash([]);
          }
        }
        g.strokeStyle = this.colours.line;
        g.lineWidth = 1;
        g.beginPath(); g.moveTo(0, height - 0.5); g.lineTo(width, height - 0.5); g.stroke();
        if (this.pointer !== null) {
          g.strokeStyle = this.colours.ink;
          g.beginPath(); g.moveTo(x(shown.t), 0); g.lineTo(x(shown.t), height); g.stroke();
        }
        const ago = Math.round((last.t - shown.t) / 1000);
        const text = spec.say(shown) + (this.pointer !== null ? `, ${ago} s ago` : "");
        value.textContent = text;
        canvas.setAttribute("aria-label", `${spec.name} over the last two minutes; ${text}`);
      }
    }
  }

  return { BlockMap, Strips, palette, STATES: { FREE, CACHED, HELD, SHARED, MOVING } };
})();
