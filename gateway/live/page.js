// The live page: the feed, the list of requests, the chat. The map and the strips are view.js, before this.
(() => {
  const $ = (selector) => document.querySelector(selector);
  const labels = new Map();
  const short = (label) => label.replace(/^\w+-/, "").slice(-6);
  const name = (request) => (labels.has(request) ? `request ${short(labels.get(request))}` : `request #${request}`);
  const map = new KilburnView.BlockMap($("#map"), { names: name, onHover: (request) => mark(request) });
  let key = sessionStorage.getItem("kilburn-key") || "";
  let lastNumbers = null, lostSince = null, lastTtft = null, modelName = "";
  const headers = (more = {}) => (key ? { authorization: `Bearer ${key}`, ...more } : more);
  const whole = (n) => Math.round(n).toLocaleString("en");

  const strips = new KilburnView.Strips($("#strips"), [
    { name: "memory, frames", stacked: true, max: () => map.total || 1, series: [
      { key: "held", colour: (c) => c.owner(2) }, { key: "moving", colour: (c) => c.accent }, { key: "cached", colour: (c) => c.cached },
    ], say: (s) => `${whole(s.held)} held, ${whole(s.cached)} cached, ${whole(s.free)} free` },
    { name: "batch and queue", series: [
      { key: "running", colour: (c) => c.owner(2) }, { key: "waiting", colour: (c) => c.accent, dash: [4, 3] },
    ], say: (s) => `${s.running} running, ${s.waiting} waiting (dashed)` },
    { name: "tokens a second", series: [{ key: "rate", colour: (c) => c.ink }], say: (s) => `${whole(s.rate)} tok/s` },
    { name: "time to first token", least: 50, series: [{ key: "ttft", colour: (c) => c.ink, dots: true }],
      say: (s) => (s.lastTtft == null ? "none yet" : `${whole(s.lastTtft)} ms`) },
  ]);

  // -- the feed: server-sent events by fetch, because a key goes in a header ------------------------------------------

  const lines = async function* (response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  };

  const follow = async () => {
    let wait = 500;
    for (;;) {
      try {
        const response = await fetch("live", { headers: headers() });
        if (response.status === 401) { await askForKey(); continue; }
        if (!response.ok) throw new Error((await response.json()).error.message);
        for await (const data of lines(response)) {
          wait = 500;
          take(JSON.parse(data));
        }
      } catch (error) {
        if (!(error instanceof TypeError) && error.name !== "AbortError" && error.message) $("#served").textContent = error.message;
      }
      lost();
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 5000);
    }
  };

  const lost = () => {
    lostSince ??= new Date();
    document.body.dataset.lost = "";
    status("lost", `no connection since ${lostSince.toLocaleTimeString()}; trying again`);
  };

  const status = (state, text) => {
    $("#status").dataset.state = state;
    const span = $("#status span");
    if (span.textContent !== text) span.textContent = text;
  };

  const take = (message) => {
    if (message.type === "hello") {
      lostSince = null;
      delete document.body.dataset.lost;
      modelName = message.model;
      map.blockSize = message.block_size;
      $("#served").textContent = `${message.model} · ${whole(message.total_blocks)} blocks of ${message.block_size}${message.version === "unknown" ? "" : ` · ${message.version}`}`;
      lastNumbers = null;
    } else if (message.type === "frames") {
      map.apply(message);
      (message.events || []).forEach(happened);
    } else numbers(message);
  };

  const askForKey = () => new Promise((resolve) => {
    status("lost", "an API key is needed");
    $("#key").hidden = false;
    $("#key-value").focus();
    $("#key").onsubmit = (event) => {
      event.preventDefault();
      key = $("#key-value").value.trim();
      sessionStorage.setItem("kilburn-key", key);
      $("#key").hidden = true;
      resolve();
    };
  });

  // -- numbers ----------------------------------------------------------------------------------------------------------

  const percent = (part, of) => (of > 0 ? `${((100 * part) / of).toFixed(part && (10 * part) / of < 1 ? 1 : 0)} %` : "0 %");
  const numbers = (n) => {
    const t = performance.now(), total = n.free + n.cached + n.held + n.moving;
    const rate = lastNumbers ? Math.max(0, (1000 * (n.tokens - lastNumbers.tokens)) / (t - lastNumbers.t)) : 0;
    lastNumbers = { tokens: n.tokens, t };
    const ttft = n.ttft_ms.length ? Math.max(...n.ttft_ms) : null;
    if (ttft !== null) lastTtft = ttft;
    strips.add({ t, ...n, rate, ttft, lastTtft });
    status(n.status, `${n.status} · ${whole(rate)} tok/s · ${n.running} running · ${n.waiting} waiting`);
    const figures = {
      used: percent(n.held + n.moving, total),
      waste: n.allocated_tokens ? percent(n.allocated_tokens - n.used_tokens, n.allocated_tokens) : "none",
      saved: n.logical_blocks > n.held ? percent(n.logical_blocks - n.held, n.logical_blocks) : "nothing",
      cached: percent(n.cached, total),
      moving: whole(n.moving),
      host: n.host_blocks ? percent(n.host_used_blocks, n.host_blocks) : "no swap",
    };
    for (const [id, text] of Object.entries(figures)) $(`[data-figure="${id}"]`).textContent = text;
    list(n.requests, n.num_requests);
  };

  // -- requests ---------------------------------------------------------------------------------------------------------

  const items = new Map();
  let marked = -1;
  const mark = (request) => {
    if (request === marked) return;
    items.get(marked)?.classList.remove("marked");
    marked = request;
    items.get(marked)?.classList.add("marked");
  };

  const item = (row) => {
    const li = document.createElement("li");
    li.className = "request";
    li.innerHTML = `<span class="swatch" aria-hidden="true"></span><code></code><span class="state"></span><span class="facts quiet"></span><button type="button">✕</button>`;
    li.querySelector("code").textContent = short(row.label);
    li.querySelector("code").title = row.label;
    li.querySelector(".swatch").style.background = KilburnView.palette().owner(row.id);
    const button = li.querySelector("button");
    button.setAttribute("aria-label", `Cancel request ${short(row.label)}`);
    button.addEventListener("click", () => cancel(row.label, button));
    li.addEventListener("pointerenter", () => map.highlight(row.id));
    li.addEventListener("pointerleave", () => map.highlight(-1));
    li.addEventListener("focusin", () => map.highlight(row.id));
    li.addEventListener("focusout", () => map.highlight(-1));
    return li;
  };

  const list = (rows, count) => {
    const ul = $("#list"), seen = new Set(rows.map((row) => row.id));
    for (const [id, li] of items) if (!seen.has(id)) { li.remove(); items.delete(id); if (map.focusRequest === id) map.highlight(-1); }
    if (labels.size > 5000) labels.clear();
    for (const row of rows) {
      labels.set(row.id, row.label);
      let li = items.get(row.id);
      if (!li) { li = item(row); items.set(row.id, li); ul.append(li); }
      li.classList.toggle("marked", row.id === marked);
      li.dataset.state = row.state;
      li.querySelector(".state").textContent = row.state;
      const first = row.ttft_ms === null ? `${row.age_s.toFixed(0)} s old` : `ttft ${whole(row.ttft_ms)} ms`;
      li.querySelector(".facts").textContent = `prompt ${whole(row.prompt)}${row.cached ? ` (${whole(row.cached)} cached)` : ""} · out ${whole(row.out)} · ${first}`;
    }
    let note = ul.querySelector("li.quiet");
    const text = !count ? "No request is open." : count > rows.length ? `and ${whole(count - rows.length)} more` : "";
    if (!text) note?.remove();
    else { if (!note) { note = document.createElement("li"); note.className = "quiet"; } note.textContent = text; ul.append(note); }
  };

  const cancel = async (label, button) => {
    button.disabled = true;
    await fetch(`v1/requests/${encodeURIComponent(label)}/cancel`, { method: "POST", headers: headers() });
  };

  // -- what happens -------------------------------------------------------------------------------------------------------

  const happened = (event) => {
    const [kind, ...rest] = event;
    const say = {
      copy: () => `copy-on-write: frame ${rest[0]} to ${rest[1]}`,
      evict: () => `evicted ${rest.length === 1 ? `frame ${rest[0]}` : `${whole(rest.length)} frames, ${rest[0]} first`}`,
      preempt: () => `preempted ${name(rest[0])}, by ${rest[1]}`,
      swap: () => `swap ${rest[1]}: ${name(rest[0])}`,
    }[kind];
    if (!say) return;
    const ol = $("#events"), li = document.createElement("li"), time = document.createElement("span");
    ol.querySelector("li.quiet")?.remove();
    time.className = "quiet";
    time.textContent = `${new Date().toLocaleTimeString("en-GB")} `;
    const text = document.createElement("span");
    text.textContent = say();
    if (kind === "preempt") text.className = "warm";
    li.append(time, text);
    ol.prepend(li);
    while (ol.children.length > 12) ol.lastChild.remove();
  };

  // -- chat -----------------------------------------------------------------------------------------------------------------

  let messages = [], stop = null;
  const say = (who, text, failed = false) => {
    const talk = $("#talk");
    talk.querySelector("p.quiet")?.remove();
    const p = document.createElement("p"), by = document.createElement("span"), said = document.createElement("span");
    by.className = "who";
    by.textContent = who;
    said.textContent = text;
    if (failed) said.className = "failed";
    p.append(by, said);
    talk.append(p);
    talk.scrollTop = talk.scrollHeight;
    return said;
  };

  const send = async () => {
    const text = $("#question").value.trim();
    if (!text || stop) return;
    $("#question").value = "";
    say("you", text);
    messages.push({ role: "user", content: text });
    const asked = messages;
    const answer = say(modelName, "");
    stop = new AbortController();
    $("#stop").disabled = false;
    $("#send").disabled = true;
    let said = "";
    try {
      const response = await fetch("v1/chat/completions", {
        method: "POST", signal: stop.signal, headers: headers({ "content-type": "application/json" }),
        body: JSON.stringify({ messages: asked, stream: true, max_tokens: Number($("#most").value) || undefined }),
      });
      if (!response.ok) throw new Error((await response.json()).error.message);
      for await (const data of lines(response)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const part = chunk.choices[0]?.delta.content;
        if (!part) continue;
        said += part;
        answer.textContent = said;
        const talk = $("#talk");
        talk.scrollTop = talk.scrollHeight;
      }
    } catch (error) {
      const reason = error.name === "AbortError" ? "stopped" : error.message;
      answer.textContent = said ? `${said} ` : "";
      const note = document.createElement("span");
      note.className = "failed";
      note.textContent = `(${reason})`;
      answer.append(note);
    }
    if (messages === asked) { if (said) messages.push({ role: "assistant", content: said }); else messages.pop(); }
    stop = null;
    $("#stop").disabled = true;
    $("#send").disabled = false;
  };

  $("#ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("#question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  $("#stop").addEventListener("click", () => stop?.abort());
  $("#clear").addEventListener("click", () => {
    stop?.abort();
    messages = [];
    $("#talk").innerHTML = `<p class="quiet">Ask something, and watch its blocks fill.</p>`;
  });

  follow();
})();
