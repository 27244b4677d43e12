// The list of open requests, each with its owner's hue and a button that cancels it.
"use strict";
const KilburnRequests = (() => {
  const $ = (selector) => document.querySelector(selector);
  const MOST_LABELS = 5000;
  const whole = (n) => Math.round(n).toLocaleString("en");
  const short = (label) => label.replace(/^\w+-/, "").slice(-6);

  class Requests {
    constructor(onLook) {
      this.onLook = onLook;
      this.labels = new Map();
      this.items = new Map();
      this.marked = -1;
      KilburnView.dark.addEventListener("change", () => this.paint());
    }

    name(request) {
      return this.labels.has(request) ? `request ${short(this.labels.get(request))}` : `request #${request}`;
    }

    mark(request) {
      this.items.get(this.marked)?.classList.remove("marked");
      this.marked = request;
      this.items.get(request)?.classList.add("marked");
    }

    paint() {
      const colours = KilburnView.palette();
      for (const [id, tr] of this.items) tr.querySelector(".swatch").style.background = colours.owner(id);
    }

    show(rows, count) {
      const seen = new Set(rows.map((row) => row.id));
      for (const [id, tr] of this.items) {
        if (seen.has(id)) continue;
        if (tr.contains(document.activeElement) || tr.matches(":hover")) this.onLook(-1);
        tr.remove();
        this.items.delete(id);
      }
      if (this.labels.size > MOST_LABELS) this.labels.clear();
      let isNew = false;
      for (const row of rows) {
        this.labels.set(row.id, row.label);
        if (!this.items.has(row.id)) { this.items.set(row.id, this.build(row)); isNew = true; }
        this.fill(this.items.get(row.id), row);
      }
      if (isNew) this.paint();
      $("#more").classList.remove("failed");
      $("#more").textContent = !count ? "No request is open." : count > rows.length ? `and ${whole(count - rows.length)} more` : "";
    }

    build(row) {
      const tr = document.createElement("tr");
      tr.className = "request";
      tr.classList.toggle("marked", row.id === this.marked);
      tr.innerHTML = `<td><span class="swatch"></span></td><td><code></code></td><td class="state"></td><td class="num prompt"></td>
        <td class="num wide cached"></td><td class="num out"></td><td class="num ttft"></td><td><button type="button">✕</button></td>`;
      const code = tr.querySelector("code"), button = tr.querySelector("button");
      code.textContent = short(row.label);
      code.title = row.label;
      button.setAttribute("aria-label", `Cancel request ${short(row.label)}`);
      button.addEventListener("click", () => this.cancel(row.label, button));
      for (const name of ["pointerenter", "focusin"]) tr.addEventListener(name, () => this.onLook(row.id));
      for (const name of ["pointerleave", "focusout"]) tr.addEventListener(name, () => this.onLook(-1));
      $("#list").append(tr);
      return tr;
    }

    fill(tr, row) {
      tr.dataset.state = row.state;
      const texts = {
        state: row.state, prompt: whole(row.prompt), cached: whole(row.cached), out: whole(row.out),
        ttft: row.ttft_ms === null ? `${row.age_s.toFixed(0)} s …` : `${whole(row.ttft_ms)} ms`,
      };
      for (const [name, text] of Object.entries(texts)) {
        const td = tr.querySelector(`.${name}`);
        if (td.textContent !== text) td.textContent = text;
      }
      tr.querySelector(".ttft").title = row.ttft_ms === null ? "no token yet; so old is the request" : "time to first token";
    }

    async cancel(label, button) {
      button.disabled = true;
      let why = "";
      try {
        const response = await KilburnFeed.ask(`v1/requests/${encodeURIComponent(label)}/cancel`, { method: "POST" });
        if (response.ok || response.status === 404) return; // gone already is as good
        why = await KilburnFeed.reason(response);
      } catch {
        why = "the server cannot be reached";
      }
      button.disabled = false;
      $("#more").textContent = `Request ${short(label)} was not cancelled: ${why}`;
      $("#more").classList.add("failed");
    }
  }

  return { Requests, whole };
})();
