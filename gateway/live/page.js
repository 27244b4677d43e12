// The live page: puts the feed's messages where they are seen. The view is in front of this, as are feed, requests and chat.
"use strict";
(() => {
  const $ = (selector) => document.querySelector(selector);
  const { whole } = KilburnRequests;
  const RATE_OVER_MS = 2000;
  const MOST_EVENTS = 12;
  const requests = new KilburnRequests.Requests((request) => map.highlight(request));
  const map = new KilburnView.BlockMap($("#map"), {
    names: (request) => requests.name(request), onHover: (request) => requests.mark(request),
  });
  const strips = new KilburnView.Strips($("#strips"), [
    { name: "memory, frames", stacked: true, max: () => map.total || 1, series: [
      { key: "full", fill: "ink", text: (s) => `${whole(s.full)} used` },
      { key: "slack", fill: "faint", text: (s) => `${whole(s.slack)} waste` },
      { key: "cached", fill: "hatch", text: (s) => `${whole(s.cached)} cached` },
      { key: "moving", fill: "accent", text: (s) => (s.moving ? `${whole(s.moving)} moving` : "") },
    ] },
    { name: "batch and queue", least: 4, series: [
      { key: "running", stroke: "ink", text: (s) => `${whole(s.running)} running` },
      { key: "waiting", stroke: "quiet", dash: [4, 3], text: (s) => `${whole(s.waiting)} waiting` },
    ] },
    { name: "tokens a second", least: 10, series: [{ key: "rate", stroke: "ink", text: (s) => `${whole(s.rate)} tok/s` }] },
    { name: "time to first token, ms", least: 50, series: [
      { key: "ttft", dots: true, text: (s) => (s.lastTtft == null ? "none yet" : `${whole(s.lastTtft)} ms`) },
    ] },
  ]);
  let lostSince = null, lastTtft = null, totals = [];

  const status = (state, text) => {
    $("#status").dataset.state = state;
    const span = $("#status span");
    if (span.textContent !== text) span.textContent = text;
  };

  const alone = (state, text) => {
    document.body.dataset.lost = "";
    $("#rate").textContent = "";
    status(state, text);
  };

  const lost = (why) => {
    lostSince ??= new Date();
    const since = lostSince.toLocaleTimeString("en-GB");
    alone("lost", why ? `refused since ${since}: ${why}; trying again` : `no connection since ${since}; trying again`);
  };

  const take = (message) => {
    if (message.type === "hello") hello(message);
    else if (message.type === "frames") {
      map.apply(message);
      if (message.events) tell(message.events);
    } else numbers(message);
  };

  const hello = ({ model, version, block_size, total_blocks }) => {
    lostSince = null;
    totals = [];
    delete document.body.dataset.lost;
    map.blockSize = block_size;
    const own = version === "unknown" ? "" : ` · Kilburn ${version}`;
    $("#served").textContent = `${model} · ${whole(total_blocks)} blocks of ${block_size} tokens${own}`;
    document.title = `Kilburn · ${model}`;
  };

  // -- numbers ----------------------------------------------------------------------------------------------------------

  const percent = (part, of) => (of > 0 ? `${((100 * part) / of).toFixed(part && (10 * part) / of < 1 ? 1 : 0)} %` : "0 %");

  const rateOf = (t, tokens) => {
    totals.push({ t, tokens });
    while (t - totals[0].t > RATE_OVER_MS) totals.shift();
    const span = t - totals[0].t;
    return span ? Math.max(0, (1000 * (tokens - totals[0].tokens)) / span) : 0;
  };

  const numbers = (n) => {
    const t = performance.now(), total = n.free + n.cached + n.held + n.moving, rate = rateOf(t, n.tokens);
    const full = n.allocated_tokens ? (n.held * n.used_tokens) / n.allocated_tokens : 0;
    if (n.ttft_ms.length) lastTtft = n.ttft_ms[n.ttft_ms.length - 1];
    strips.add({ t, ...n, full, slack: n.held - full, rate, ttft: n.ttft_ms, lastTtft });
    map.host(n.host_used_blocks, n.host_blocks);
    status(n.status, n.status);
    const swapped = n.swapped ? ` · ${whole(n.swapped)} swapped` : "";
    $("#rate").textContent = `${whole(rate)} tok/s · ${whole(n.running)} running · ${whole(n.waiting)} waiting${swapped}`;
    const saved = n.logical_blocks - n.held;
    const figures = {
      used: [percent(n.held + n.moving, total), `of ${whole(total)} frames`],
      waste: n.allocated_tokens ? [percent(n.allocated_tokens - n.used_tokens, n.allocated_tokens), "of allocated slots"] : ["–", "nothing allocated"],
      saved: saved > 0 ? [percent(saved, n.logical_blocks), `${whole(saved)} frames`] : ["–", "nothing shared"],
      cached: [percent(n.cached, total), `${whole(n.cached)} frames`],
      moving: [whole(n.moving), "frames in transfer"],
      host: n.host_blocks ? [percent(n.host_used_blocks, n.host_blocks), `of ${whole(n.host_blocks)} blocks`] : ["–", "no swap"],
    };
    for (const [id, [value, of]] of Object.entries(figures)) {
      $(`[data-figure="${id}"]`).textContent = value;
      $(`[data-of="${id}"]`).textContent = of;
    }
    requests.show(n.requests, n.num_requests);
  };

  // -- what happens -------------------------------------------------------------------------------------------------------

  const frames = (list) => (list.length === 1 ? `frame ${list[0]}` : `${whole(list.length)} frames, ${list[0]} first`);

  // One line for each thing that happened, evictions of one look together.
  const tell = (events) => {
    const evicted = events.filter(([kind]) => kind === "evict").flatMap((event) => event.slice(1));
    if (evicted.length) line(`evicted ${frames(evicted)}, to make room`);
    for (const [kind, a, b, c] of events) {
      if (kind === "copy") line(`copy-on-write: frame ${a} to ${b}`);
      else if (kind === "preempt") line(`preempted ${requests.name(a)}, by ${b}, for ${c === a ? "want of a frame of its own" : `${requests.name(c)} to grow`}`, true);
      else if (kind === "swap") line(`swapping ${requests.name(a)} ${b}`);
    }
  };

  const line = (text, warm = false) => {
    const ol = $("#events"), li = document.createElement("li"), time = document.createElement("span"), said = document.createElement("span");
    ol.querySelector("li.quiet")?.remove();
    time.className = "quiet";
    time.textContent = `${new Date().toLocaleTimeString("en-GB")}  `;
    said.textContent = text;
    if (warm) said.className = "warm";
    li.append(time, said);
    ol.prepend(li);
    while (ol.children.length > MOST_EVENTS) ol.lastChild.remove();
  };

  KilburnFeed.follow({ take, lost, locked: () => alone("locked", "an API key is needed") });
})();
