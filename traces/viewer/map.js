// The block map: one cell a frame, in physical order. Takes the deltas of delta.py, draws only what changed, and tells a frame's story.
"use strict";
KilburnView.BlockMap = (() => {
  const { FREE, CACHED, HELD, SHARED, MOVING, STATE_NAMES, calm, dark, palette, sharp, drawCell } = KilburnView;
  const RUN = 7;
  const LEAVING_MS = 2000;
  const RAIL = 18; // the host's fill beside the map, with its gap

  class BlockMap {
    // `names(request)` says what to call a request; `onHover(request or -1)` is told whose frame is looked at, `onPin` whose is pinned.
    constructor(root, { names = (request) => `request ${request}`, onHover = () => {}, onPin = () => {} } = {}) {
      this.root = root;
      root.view = this;
      this.names = names;
      this.onHover = onHover;
      this.onPin = onPin;
      root.classList.add("km");
      root.innerHTML = `<div class="km-sheet"><canvas class="km-map" tabindex="0" role="application" aria-roledescription="block map"
        aria-label="Block map. Arrow keys walk the frames, Page Up and Page Down go to the next change of owner, Enter pins a frame, Escape lets go."></canvas>
        <canvas class="km-over" aria-hidden="true"></canvas>
        <div class="km-host" role="img" hidden><i></i></div></div>
        <ul class="km-legend" aria-label="Frames by state"></ul>
        <p class="km-story"></p><p class="km-said" role="status"></p>`;
      this.canvas = root.querySelector(".km-map");
      this.over = root.querySelector(".km-over");
      this.story = root.querySelector(".km-story");
      this.said = root.querySelector(".km-said");
      this.total = 0;
      this.blockSize = 1;
      this.cursor = this.pinned = this.focusRequest = this.toldOwner = -1;
      this.hasHost = false;
      this.counts = [0, 0, 0, 0, 0];
      this.dirty = new Set();
      this.motion = new KilburnView.Motion();
      this.changes = new Changes();
      this.pending = false;
      this.colours = palette();
      this.legend();
      this.tell();
      this.canvas.addEventListener("pointermove", (e) => this.look(this.at(e)));
      this.canvas.addEventListener("pointerleave", () => { if (document.activeElement !== this.canvas) this.look(-1); });
      this.canvas.addEventListener("click", (e) => this.pin(this.at(e)));
      this.canvas.addEventListener("keydown", (e) => this.key(e));
      this.canvas.addEventListener("focus", () => { if (this.cursor < 0 && this.total && this.canvas.matches(":focus-visible")) this.look(0, true); });
      this.canvas.addEventListener("blur", () => { if (this.pinned < 0) this.look(-1); });
      new ResizeObserver(() => this.layout()).observe(root);
      dark.addEventListener("change", () => {
        this.colours = palette();
        this.legend();
        this.redraw();
      });
    }

    get shown() { return this.pinned >= 0 ? this.pinned : this.cursor; }

    // -- state ---------------------------------------------------------------------------------------------------

    // Takes a delta in; a whole map replaces what was there, and what is pinned or looked at stays so where the pool is the same.
    // `quiet`: without showing how it came about.
    apply(delta, quiet = false) {
      if (delta.total) this.begin(delta.total);
      const moved = delta.total || quiet || calm() ? null : this.changes, now = performance.now();
      moved?.begin(delta.events || [], now);
      const runs = delta.runs || [];
      for (let i = 0; i < runs.length; i += RUN) {
        const first = runs[i], end = first + runs[i + 1], state = runs[i + 2], refs = runs[i + 3], request = runs[i + 4];
        const index = runs[i + 5], column = runs[i + 6];
        for (let frame = first; frame < end; frame++) {
          const was = this.state[frame];
          moved?.see(frame, was, this.request[frame], state, request);
          this.counts[was]--;
          this.counts[state]++;
          this.state[frame] = state;
          this.refs[frame] = refs;
          this.request[frame] = request;
          this.index[frame] = index;
          this.column[frame] = column < 0 ? -1 : column + frame - first;
          if (!delta.total) this.dirty.add(frame);
        }
      }
      for (const [frame, ...holders] of delta.others || []) {
        if (holders.length) this.others.set(frame, holders); else this.others.delete(frame);
      }
      moved?.ask(this.motion, now);
      if (delta.total) { this.layout(); this.redraw(); }
      this.count();
      this.wake();
      this.tell();
    }

    begin(total) {
      if (total !== this.total) this.cursor = this.pinned = -1;
      this.total = total;
      this.state = new Uint8Array(total);
      this.refs = new Int32Array(total);
      this.request = new Float64Array(total).fill(-1);
      this.index = new Int32Array(total).fill(-1);
      this.column = new Int32Array(total).fill(-1);
      this.others = new Map();
      this.counts = [total, 0, 0, 0, 0];
      this.motion.clear();
      this.dirty.clear();
    }

    // How full the host's memory is; shown where there is any.
    host(used, total) {
      const rail = this.root.querySelector(".km-host");
      if (this.hasHost !== total > 0) {
        this.hasHost = total > 0;
        rail.hidden = !this.hasHost;
        this.layout();
      }
      if (!this.hasHost) return;
      rail.firstElementChild.style.height = `${(100 * used) / total}%`;
      rail.setAttribute("aria-label", `Host memory: ${used} of ${total} blocks hold swapped work`);
      rail.title = rail.getAttribute("aria-label");
    }

    // -- geometry ------------------------------------------------------------------------------------------------

    layout() {
      const width = this.root.clientWidth - (this.hasHost ? RAIL : 0);
      if (!this.total || width <= 0) return;
      const tall = width < 500 ? 340 : Math.max(320, Math.min(560, window.innerHeight * 0.5));
      const size = Math.max(4, Math.min(28, Math.floor(Math.sqrt((width * tall) / this.total))));
      const columns = Math.max(1, Math.floor(width / size)), rows = Math.ceil(this.total / columns);
      const now = [this.total, size, columns, window.devicePixelRatio].join();
      if (now === this.geometry) return;
      this.geometry = now;
      this.size = size;
      this.columns = columns;
      this.width = columns * size;
      this.height = rows * size;
      this.g = sharp(this.canvas, this.width, this.height);
      this.o = sharp(this.over, this.width, this.height);
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
      const g = this.o, shown = this.shown;
      const request = this.focusRequest >= 0 ? this.focusRequest : shown >= 0 ? this.request[shown] : -1;
      const overlaid = this.motion.busy || request >= 0 || shown >= 0;
      if (overlaid || this.overlaid) g.clearRect(0, 0, this.width, this.height);
      this.overlaid = overlaid;
      if (request >= 0) this.dim(g, request);
      this.motion.draw(g, this, now);
      if (shown >= 0) this.ring(g, shown);
      if (this.motion.busy) this.wake();
    }

    // Everything but one request's frames steps back.
    dim(g, request) {
      const s = this.size;
      g.globalAlpha = 0.72;
      g.fillStyle = this.colours.paper;
      g.fillRect(0, 0, this.width, this.height);
      g.globalAlpha = 1;
      for (let frame = 0; frame < this.total; frame++) {
        if (this.request[frame] !== request && !(this.state[frame] === SHARED && this.holds(frame, request))) continue;
        const [x, y] = this.place(frame);
        g.clearRect(x, y, s, s);
      }
    }

    ring(g, frame) {
      const [x, y] = this.place(frame), s = this.size;
      g.lineWidth = 4;
      g.strokeStyle = this.colours.sheet;
      g.strokeRect(x - 1.5, y - 1.5, s + 2, s + 2);
      g.lineWidth = 2;
      g.strokeStyle = this.colours.ink;
      g.strokeRect(x - 1.5, y - 1.5, s + 2, s + 2);
      if (this.pinned < 0) return;
      g.fillStyle = this.colours.ink;
      g.beginPath();
      g.arc(x + s / 2 - 0.5, y - 3, 4, 0, 7);
      g.fill();
    }

    holds(frame, request) {
      const others = this.others.get(frame);
      if (others) for (let i = 0; i < others.length; i += 2) if (others[i] === request) return true;
      return false;
    }

    // -- looking -------------------------------------------------------------------------------------------------

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns }[event.key];
      if (step) this.look(Math.max(0, Math.min(this.total - 1, this.cursor + step)), true);
      else if (event.key === "Home") this.look(0, true);
      else if (event.key === "End") this.look(this.total - 1, true);
      else if (event.key === "PageDown") this.look(this.border(1), true);
      else if (event.key === "PageUp") this.look(this.border(-1), true);
      else if (event.key === "Enter" || event.key === " ") this.pin(this.cursor);
      else if (event.key === "Escape") this.pin(-1);
      else return;
      event.preventDefault();
    }

    // The next frame, that way, of another owner or state.
    border(step) {
      const here = Math.max(0, this.cursor);
      let frame = here;
      while (frame + step >= 0 && frame + step < this.total) {
        frame += step;
        if (this.request[frame] !== this.request[here] || this.state[frame] !== this.state[here]) break;
      }
      return frame;
    }

    look(frame, aloud = false) {
      if (frame === this.cursor) return;
      this.cursor = frame;
      if (this.pinned < 0) this.tell(aloud);
      this.wake();
    }

    pin(frame) {
      this.pinned = frame === this.pinned ? -1 : frame;
      this.onPin(this.pinned >= 0 ? this.request[this.pinned] : -1);
      this.tell(true);
      this.wake();
    }

    highlight(request) {
      this.focusRequest = request;
      this.wake();
    }

    // [what it is, ...what else there is to say].
    describe(frame) {
      const state = STATE_NAMES[this.state[frame]], refs = this.refs[frame], request = this.request[frame];
      const parts = [`Frame ${frame} is ${state}`], sequence = (index) => (index > 0 ? `, sequence ${index}` : "");
      if (request >= 0) {
        const from = this.column[frame] * this.blockSize;
        parts.push(`${this.names(request)}${sequence(this.index[frame])}, positions ${from} to ${from + this.blockSize - 1}`);
        const others = this.others.get(frame) || [], also = [];
        for (let i = 0; i < others.length; i += 2) also.push(`${this.names(others[i])}${sequence(others[i + 1])}`);
        if (also.length) parts.push(`also ${also.join(" and ")}`);
      } else if (state === "cached") parts.push("its content can be found again, and is kept until the room is needed");
      else if (state === "moving") parts.push("held by a transfer only");
      if (refs || request >= 0) parts.push(`${refs} reference${refs === 1 ? "" : "s"}`);
      return parts;
    }

    // Writes the story of the frame that is looked at; says it aloud after a key, or where a pinned frame's state changed.
    tell(aloud = false) {
      const shown = this.shown;
      let text = this.total ? "Point at a frame, or walk the map with the arrow keys, to see what it holds." : "Waiting for the first map.";
      if (shown >= 0) {
        const [head, ...rest] = this.describe(shown);
        text = `${head}${this.pinned >= 0 ? " (pinned)" : ""}${rest.length ? ": " : "."}${rest.join("; ")}`;
        aloud ||= this.pinned >= 0 && this.toldState !== this.state[shown];
        this.toldState = this.state[shown];
      }
      if (this.story.textContent !== text) this.story.textContent = text;
      if (aloud) this.said.textContent = shown >= 0 ? text : "";
      const owner = shown >= 0 ? this.request[shown] : -1;
      if (owner !== this.toldOwner) { this.toldOwner = owner; this.onHover(owner); }
    }

    legend() {
      const list = this.root.querySelector(".km-legend");
      this.numbers = [];
      list.replaceChildren(...[
        [FREE, "free"], [HELD, "held, hue by owner"], [SHARED, "shared"], [CACHED, "cached"], [MOVING, "moving"],
      ].map(([state, text]) => {
        const item = document.createElement("li"), swatch = document.createElement("canvas"), number = document.createElement("b");
        drawCell(sharp(swatch, 15, 15), { ...this.colours, sheet: this.colours.paper }, 0, 0, 15, state, 2);
        swatch.setAttribute("aria-hidden", "true");
        this.numbers[state] = number;
        item.append(swatch, text, " ", number);
        return item;
      }));
      this.count();
    }

    count() {
      if (!this.total) return;
      this.counts.forEach((count, state) => {
        const text = count.toLocaleString("en");
        if (this.numbers[state].textContent !== text) this.numbers[state].textContent = text;
      });
    }
  }

  // What a delta moves, told from its events and from what each frame was before. A victim may keep its frames until a step
  // that names it is over, so whoever was preempted is remembered for a while.
  class Changes {
    constructor() { this.leaving = new Map(); }

    begin(events, now) {
      for (const [request, { since }] of this.leaving) if (now - since > LEAVING_MS) this.leaving.delete(request);
      this.arriving = new Set();
      this.evicted = new Set();
      this.copies = [];
      this.cells = { flash: [], evict: [], out: [], in: [], drop: [] };
      for (const [kind, ...rest] of events) {
        if (kind === "preempt") this.leaving.set(rest[0], { mode: rest[1], since: now });
        else if (kind === "swap" && rest[1] === "in") this.arriving.add(rest[0]);
        else if (kind === "evict") rest.forEach((frame) => this.evicted.add(frame));
        else if (kind === "copy") this.copies.push(rest);
      }
    }

    see(frame, was, owner, state, request) {
      const left = owner >= 0 && owner !== request ? this.leaving.get(owner) : undefined;
      if (left) this.cells[left.mode === "swap" ? "out" : "drop"].push([frame, owner]);
      else if (this.evicted.has(frame)) this.cells.evict.push([frame, owner]);
      if (owner === request) return;
      if (this.arriving.has(request)) this.cells.in.push([frame, request]);
      else if (request >= 0 && was < HELD && state >= HELD) this.cells.flash.push([frame, request]);
    }

    ask(motion, now) {
      for (const [kind, cells] of Object.entries(this.cells)) motion.ask(kind, cells, now);
      motion.ask("copy", this.copies, now);
    }
  }

  return BlockMap;
})();
