// Strips: small charts over one time axis, with one pointer through all of them. Knows samples; fetches nothing.
"use strict";
KilburnView.Strips = (() => {
  const { dark, palette, sharp, hatch } = KilburnView;
  const HEIGHT = 48;
  const SPANS_MS = [30, 60, 120, 300, 600].map((seconds) => 1000 * seconds);

  const hatched = (colours) => {
    const tile = document.createElement("canvas"), ratio = window.devicePixelRatio || 1, size = Math.round(5 * ratio);
    tile.width = tile.height = size;
    const g = tile.getContext("2d");
    g.fillStyle = colours.cell;
    g.fillRect(0, 0, size, size);
    hatch(g, 0, 0, Math.min(size, 7), colours.cached);
    return g.createPattern(tile, "repeat");
  };

  // A round number that is at least `value`, for the top of a chart.
  const roundUp = (value) => {
    const step = 10 ** Math.floor(Math.log10(Math.max(1, value)));
    return [1, 2, 5, 10].map((each) => each * step).find((each) => each >= value);
  };

  class Strips {
    // `specs`: {name, series, stacked, max, least, unit, note}. A series: {key, label, fill or stroke, dash, dots}, colours by name in the
    // style sheet or "hatch"; `text(sample)` says its value. Samples are {t: ms, key: number or null}.
    // Either of the last `most` ms, the newest sample being now; or, with `when(sample)`, of a whole run from its first sample to its last,
    // where `onPick(sample)` is told of a click and `mark` is the time that is looked at.
    constructor(root, specs, { most = 120000, when = null, onPick = null } = {}) {
      this.root = root;
      root.view = this;
      this.most = most;
      this.when = when;
      this.mark = null;
      this.samples = [];
      this.pointer = null; // index into the samples
      this.colours = palette();
      root.classList.add("km-strips");
      root.tabIndex = 0;
      root.setAttribute("role", "slider");
      root.setAttribute("aria-label", "Moment that the charts show. Left and right arrows move it.");
      this.strips = specs.map((spec) => this.build(spec));
      this.axis = document.createElement("p");
      this.axis.className = "km-axis";
      this.axis.append(document.createElement("span"), document.createElement("span"));
      root.append(this.axis);
      root.addEventListener("pointermove", (e) => this.point(e));
      root.addEventListener("pointerleave", () => this.show(null));
      root.addEventListener("keydown", (e) => this.key(e));
      root.addEventListener("blur", () => this.show(null));
      if (onPick) root.addEventListener("click", () => { if (this.pointer !== null) onPick(this.samples[this.pointer]); });
      dark.addEventListener("change", () => { this.colours = palette(); this.draw(); });
      new ResizeObserver(() => this.draw()).observe(root);
      this.draw();
    }

    build(spec) {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption"), canvas = document.createElement("canvas");
      const name = document.createElement("span"), values = document.createElement("span"), top = document.createElement("span");
      figure.className = "km-strip";
      canvas.setAttribute("aria-hidden", "true");
      values.className = "km-values";
      top.className = "km-top";
      name.textContent = spec.name;
      caption.append(name, values);
      figure.append(caption, canvas, top);
      this.root.append(figure);
      const parts = spec.series.map((series) => {
        const part = document.createElement("span"), key = document.createElement("i"), text = document.createElement("span");
        key.className = `km-key km-key-${series.dots ? "dots" : series.fill ? series.fill : series.dash ? "dashed" : "line"}`;
        if (spec.series.length > 1) part.append(key);
        part.append(text);
        values.append(part);
        return text;
      });
      return { spec, canvas, parts, top };
    }

    add(sample) {
      this.samples.push(sample);
      while (sample.t - this.samples[0].t > this.most) { this.samples.shift(); if (this.pointer > 0) this.pointer--; }
      this.draw();
    }

    // A whole run at once.
    set(samples) { this.samples = samples; this.draw(); }

    look(t) { this.mark = t; this.draw(); }

    // The sample next to the mark.
    get marked() {
      return this.mark === null ? null : this.samples.reduce((best, each) => (Math.abs(each.t - this.mark) < Math.abs(best.t - this.mark) ? each : best), this.samples[0]);
    }

    get span() {
      const samples = this.samples, length = samples.length ? samples[samples.length - 1].t - samples[0].t : 0;
      if (this.when) return length || 1;
      return Math.min(this.most, SPANS_MS.find((span) => span >= length) || this.most);
    }

    // [left, right] of the axis, and what to call the sample that is shown.
    words(last, shown) {
      if (!last) return ["", "", ""];
      if (this.when) return [this.when(this.samples[0]), this.pointer === null ? this.when(last) : `shown: ${this.when(shown)}`, this.when(shown)];
      const ago = (ms) => `${Math.round(ms / 1000)} s ago`, back = ago(last.t - shown.t);
      return [ago(this.span), this.pointer === null ? "now" : `shown: ${back}`, this.pointer === null ? "now" : back];
    }

    point(event) {
      const { canvas } = this.strips[0], box = canvas.getBoundingClientRect(), last = this.samples[this.samples.length - 1];
      if (!last) return;
      const wanted = last.t - this.span * (1 - (event.clientX - box.left) / box.width);
      let best = 0;
      this.samples.forEach((each, i) => { if (Math.abs(each.t - wanted) < Math.abs(this.samples[best].t - wanted)) best = i; });
      this.show(best);
    }

    key(event) {
      const end = this.samples.length - 1, now = this.pointer ?? end;
      const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: end }[event.key];
      if (to === undefined && event.key !== "Escape") return;
      event.preventDefault();
      this.show(to === undefined || to >= end ? null : Math.max(0, to));
    }

    show(pointer) {
      if (pointer === this.pointer) return;
      this.pointer = pointer;
      this.draw();
    }

    draw() {
      const last = this.samples[this.samples.length - 1], shown = this.pointer === null ? this.marked || last : this.samples[this.pointer];
      for (const strip of this.strips) this.strip(strip, last, shown);
      const [left, right, moment] = this.words(last, shown);
      this.axis.firstChild.textContent = left;
      this.axis.lastChild.textContent = right;
      this.root.setAttribute("aria-valuemin", "0");
      this.root.setAttribute("aria-valuemax", String(Math.max(0, this.samples.length - 1)));
      this.root.setAttribute("aria-valuenow", String(this.pointer ?? Math.max(0, this.samples.length - 1)));
      if (shown) this.root.setAttribute("aria-valuetext", `${moment}: ${this.strips.map(({ spec }) => `${spec.name}: ${spec.series.map((s) => s.text(shown)).join(", ")}`).join("; ")}`);
    }

    strip({ spec, canvas, parts, top }, last, shown) {
      const width = canvas.parentElement.clientWidth, samples = this.samples;
      if (!width) return;
      const g = sharp(canvas, width, HEIGHT), begin = last ? last.t - this.span : 0;
      const of = (s) => spec.series.map(({ key, dots }) => (dots ? Math.max(0, ...(s[key] || [])) : s[key] || 0));
      const peak = Math.max(spec.least || 1, ...samples.map((s) => (spec.stacked ? of(s).reduce((a, b) => a + b, 0) : Math.max(...of(s)))));
      const ceiling = spec.max ? spec.max() : roundUp(peak);
      const x = (t) => ((t - begin) / this.span) * width, y = (v) => HEIGHT - 1 - (v / ceiling) * (HEIGHT - 3);
      top.textContent = ceiling.toLocaleString("en");
      const floor = samples.map(() => 0);
      for (const series of spec.series) {
        const colour = this.colours[series.fill || series.stroke] || this.colours.ink;
        g.strokeStyle = g.fillStyle = colour;
        if (series.dots) {
          for (const s of samples) for (const v of s[series.key] || []) { g.beginPath(); g.arc(x(s.t), y(v), 1.75, 0, 7); g.fill(); }
          continue;
        }
        const upper = samples.map((s, i) => floor[i] + (s[series.key] || 0));
        g.beginPath();
        // A level holds until the next sample: nothing is known of a slope between the two.
        samples.forEach((s, i) => {
          if (!i) return g.moveTo(x(s.t), y(upper[i]));
          g.lineTo(x(s.t), y(upper[i - 1]));
          g.lineTo(x(s.t), y(upper[i]));
        });
        if (series.fill) {
          for (let i = samples.length - 1; i >= 0; i--) {
            g.lineTo(x(samples[i].t), y(floor[i]));
            if (i) g.lineTo(x(samples[i].t), y(floor[i - 1]));
          }
          g.closePath();
          g.fillStyle = series.fill === "hatch" ? hatched(this.colours) : colour;
          g.fill();
          if (spec.stacked) upper.forEach((v, i) => { floor[i] = v; });
        } else {
          g.lineWidth = 1.5;
          g.setLineDash(series.dash || []);
          g.stroke();
          g.setLineDash([]);
        }
      }
      g.fillStyle = this.colours.line;
      g.fillRect(0, HEIGHT - 1, width, 1);
      if (this.mark !== null) { g.fillStyle = this.colours.accent; g.fillRect(Math.round(x(this.mark)) - 1, 0, 2, HEIGHT); }
      if (this.pointer !== null) { g.fillStyle = this.colours.ink; g.fillRect(Math.round(x(shown.t)), 0, 1, HEIGHT); }
      spec.series.forEach((series, i) => {
        const text = shown ? series.text(shown) : "–";
        if (parts[i].textContent !== text) { parts[i].textContent = text; parts[i].parentElement.hidden = !text; }
      });
    }
  }

  return Strips;
})();
