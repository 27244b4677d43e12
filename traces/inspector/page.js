// The inspector: one moment of a recording on the map, the way through its moments, and the story of a request.
"use strict";
(async () => {
  const $ = (selector) => document.querySelector(selector);
  const whole = (n) => Math.round(n).toLocaleString("en");
  const time = (ms) => (ms < 1e4 ? `${(ms / 1e3).toFixed(3)} s` : ms < 6e5 ? `${(ms / 1e3).toFixed(1)} s` : `${whole(ms / 1e3)} s`);
  const MOST_LISTED = 50;
  const SHOWN_SPEED = 20; // steps a second up to which motion can be followed

  const recording = await KilburnRecording.open(), { index } = recording, { requests } = index;
  const map = new KilburnView.BlockMap($("#map"), { onHover: (request) => hover(request), onPin: (request) => { if (request >= 0) choose(request); } });
  map.blockSize = index.block;
  let now = -1, chosen = -1, wanted = 0, going = null, playing = null;

  // -- moments ----------------------------------------------------------------------------------------------------------

  // Brings the map to a moment: on from where it is, or from the piece's whole map. Calls that come meanwhile are joined into one.
  const go = (moment, shown = false) => {
    wanted = Math.max(0, Math.min(recording.last, moment));
    going ??= (async () => {
      while (wanted !== now) await bring(wanted, shown);
      going = null;
    })();
    return going;
  };

  const bring = async (moment, shown) => {
    const number = recording.pieceOf(moment), piece = await recording.piece(number), start = index.starts[number];
    const on = now >= start && now < moment;
    if (!on) map.apply(piece.key, true);
    for (let at = on ? now + 1 : start; at <= moment; at++) map.apply(piece.moments[at - start][0], !(shown && on && moment - now <= 2));
    now = moment;
    show(recording.named(piece.moments[moment - start][1]), piece.moments[moment - start][2]);
  };

  const show = (n, notes) => {
    const atEnd = now === recording.last;
    $("#slider").value = now;
    $("#slider").setAttribute("aria-valuetext", `step ${n.step} of ${index.steps - 1}, at ${time(n.ms)}`);
    $("#step").value = Math.max(0, n.step);
    $("#back").disabled = now === 0;
    $("#next").disabled = atEnd;
    const doing = atEnd ? "the end" : `computes ${whole(n.tokens)} tokens of ${whole(n.rows)} sequence${n.rows === 1 ? "" : "s"}`;
    $("#where").textContent = `step ${whole(Math.max(0, n.step))} of ${whole(Math.max(0, index.steps - 1))} · ${time(n.ms)} · ${doing} · ${n.running} running · ${n.waiting} waiting${n.swapped ? ` · ${n.swapped} swapped` : ""}`;
    map.host(n.host_used, index.host);
    strips.look(n.ms);
    $("#notes").replaceChildren(...(notes.length ? notes.map(note) : [note("Nothing but growth.", 0)]));
    if ($("#filter").value === "here") list();
    here();
    history.replaceState(null, "", `#step=${Math.max(0, n.step)}${chosen >= 0 ? `&request=${chosen}` : ""}`);
  };

  const note = (text) => {
    const li = document.createElement("li");
    li.textContent = text;
    if (text.includes(": preempted by")) li.className = "warm";
    if (text === "Nothing but growth.") li.className = "quiet";
    return li;
  };

  // -- playing ------------------------------------------------------------------------------------------------------------

  const stop = () => {
    playing = null;
    $("#play").textContent = "Play";
    $("#play").setAttribute("aria-pressed", "false");
  };

  const play = async () => {
    if (playing) { stop(); return; }
    if (now === recording.last) await go(0);
    const mine = playing = {};
    $("#play").textContent = "Pause";
    $("#play").setAttribute("aria-pressed", "true");
    let last = performance.now(), at = now;
    while (playing === mine && now < recording.last) {
      const tick = await new Promise(requestAnimationFrame), speed = Number($("#speed").value);
      at += (speed * (tick - last)) / 1000 / index.every;
      last = tick;
      if (Math.floor(at) > now) await go(Math.floor(at), speed <= SHOWN_SPEED);
    }
    if (playing === mine) stop();
  };

  // The next moment, after this one, at which somebody is preempted; around the end to the beginning.
  const nextPreemption = async () => {
    const steps = await preemptions();
    if (!steps.length) return;
    await walk(recording.momentOf(steps.find((step) => recording.momentOf(step) > now) ?? steps[0]));
  };

  let found = null;
  const preemptions = () => found ??= (async () => {
    const steps = new Set();
    for (let at = 0; at < requests.id.length; at++) {
      if (!requests.preemptions[at]) continue;
      for (const [step, , kind] of await recording.story(at)) if (kind === "preempt") steps.add(step);
    }
    return [...steps].sort((a, b) => a - b);
  })();

  // Goes where the address says.
  const follow = async () => {
    const at = new URLSearchParams(location.hash.slice(1));
    await walk(recording.momentOf(Number(at.get("step")) || 0));
    if (at.has("request")) await choose(Number(at.get("request")));
  };

  const walk = (moment) => { stop(); return go(moment, true); };

  // -- requests -----------------------------------------------------------------------------------------------------------

  const onMap = () => {
    const here = new Set();
    for (const request of map.request) if (request >= 0) here.add(request);
    for (const holders of map.others.values()) for (let i = 0; i < holders.length; i += 2) here.add(holders[i]);
    return here;
  };

  const list = () => {
    const search = $("#search").value.trim(), filter = $("#filter").value, here = filter === "here" && !search ? onMap() : null, rows = [];
    let count = 0;
    for (let at = 0; at < requests.id.length; at++) {
      const id = requests.id[at];
      if (search ? !String(id).startsWith(search) : here ? !here.has(id) : filter === "preempted" && !requests.preemptions[at]) continue;
      count++;
      if (rows.length < MOST_LISTED) rows.push(at);
    }
    const ids = rows.map((at) => requests.id[at]).join();
    if (ids !== list.shown) { list.shown = ids; $("#list").replaceChildren(...rows.map(row)); }
    const none = search ? `No request begins with ${search}.` : filter === "preempted" ? "No request was preempted." : "No request holds a block in this step.";
    $("#more").textContent = !count ? none : count > rows.length ? `and ${whole(count - rows.length)} more` : "";
    mark();
  };

  const row = (at) => {
    const tr = document.createElement("tr"), id = requests.id[at];
    tr.innerHTML = `<td><span class="swatch"></span></td><td><button type="button"></button></td><td class="num"></td><td class="num"></td><td class="num"></td><td class="num wide"></td><td class="end"></td>`;
    const cells = tr.children, ttft = requests.ttft[at];
    tr.dataset.request = id;
    tr.querySelector(".swatch").style.background = map.colours.owner(id);
    tr.querySelector("button").textContent = id;
    tr.querySelector("button").setAttribute("aria-label", `Story of request ${id}`);
    [whole(requests.prompt[at]), whole(requests.out[at]), ttft === null ? "–" : `${whole(ttft)} ms`, requests.preemptions[at] || "–", requests.end[at] || "still open"]
      .forEach((text, i) => { cells[i + 2].textContent = text; });
    tr.addEventListener("click", () => choose(id));
    for (const name of ["pointerenter", "focusin"]) tr.addEventListener(name, () => map.highlight(id));
    for (const name of ["pointerleave", "focusout"]) tr.addEventListener(name, () => map.highlight(chosen));
    return tr;
  };

  let hovered = -1;
  const hover = (request) => { hovered = request; mark(); };
  const mark = () => {
    for (const tr of $("#list").children) tr.classList.toggle("marked", [chosen, hovered].includes(Number(tr.dataset.request)));
  };

  // -- a story ------------------------------------------------------------------------------------------------------------

  const choose = async (request) => {
    const at = recording.place.get(request);
    if (at === undefined) return;
    chosen = request;
    mark();
    map.highlight(request);
    const several = requests.sequences[at] > 1 ? `, ${requests.sequences[at]} sequences` : "";
    $("#story-title").textContent = `Story of request ${request}: ${requests.end[at] || "still open when the recording ended"}${several}`;
    const lines = await recording.story(at);
    if (chosen !== request) return;
    $("#lines").replaceChildren(...lines.map(line));
    here();
  };

  const line = ([step, ms, kind, text]) => {
    const li = document.createElement("li"), jump = document.createElement("button"), when = document.createElement("span"), said = document.createElement("span");
    li.dataset.moment = recording.momentOf(step);
    jump.type = "button";
    jump.textContent = step < index.steps ? `step ${whole(step)}` : "the end";
    jump.addEventListener("click", () => walk(recording.momentOf(step)));
    when.className = "time";
    when.textContent = time(ms);
    said.className = kind === "preempt" ? "text warm" : "text";
    said.textContent = text;
    li.append(jump, when, said);
    return li;
  };

  const here = () => { for (const li of $("#lines").children) li.classList.toggle("here", Number(li.dataset.moment) === now); };

  // -- the whole run ------------------------------------------------------------------------------------------------------

  const strips = new KilburnView.Strips($("#strips"), [
    { name: "memory, frames", stacked: true, max: () => index.blocks, series: [
      { key: "full", fill: "ink", text: (s) => `${whole(s.full)} used` },
      { key: "slack", fill: "faint", text: (s) => `${whole(s.slack)} waste` },
      { key: "cached", fill: "hatch", text: (s) => `${whole(s.cached)} cached` },
      { key: "moving", fill: "accent", text: (s) => (s.moving ? `${whole(s.moving)} moving` : "") },
    ] },
    { name: "batch and queue", least: 4, series: [
      { key: "running", stroke: "ink", text: (s) => `${whole(s.running)} running` },
      { key: "waiting", stroke: "quiet", dash: [4, 3], text: (s) => `${whole(s.waiting)} waiting` },
    ] },
    { name: "tokens computed in the step", least: 4, series: [{ key: "tokens", stroke: "ink", text: (s) => whole(s.tokens) }] },
  ], {
    when: (s) => `${time(s.t)}, step ${whole(Math.max(0, s.step))}`,
    onPick: (s) => walk(recording.momentOf(s.step)),
  });
  strips.set(index.overview.map((numbers) => {
    const n = recording.named(numbers), full = n.allocated_tokens ? (n.held * n.used_tokens) / n.allocated_tokens : 0;
    return { t: n.ms, ...n, full, slack: n.held - full };
  }));

  // -- what is pressed ------------------------------------------------------------------------------------------------------

  $("#slider").max = recording.last;
  $("#step").max = Math.max(0, index.steps - 1);
  $("#slider").addEventListener("input", () => walk(Number($("#slider").value)));
  $("#back").addEventListener("click", () => walk(now - 1));
  $("#next").addEventListener("click", () => walk(now + 1));
  $("#play").addEventListener("click", play);
  $("#preemption").addEventListener("click", nextPreemption);
  $("#step").addEventListener("change", () => walk(recording.momentOf(Number($("#step").value) || 0)));
  $("#search").addEventListener("input", list);
  $("#search").addEventListener("keydown", (event) => { if (event.key === "Enter") choose(Number($("#search").value)); });
  $("#filter").addEventListener("change", list);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range]), select")) return;
    const press = { ",": () => walk(now - 1), ".": () => walk(now + 1), p: nextPreemption }[event.key];
    if (press) press();
    else if (event.key === " " && !event.target.matches("button, canvas")) { event.preventDefault(); play(); }
  });

  const every = index.every > 1 ? ` · every ${index.every}th step is shown` : "";
  $("#what").textContent = `${index.name} · ${index.model} · ${whole(index.blocks)} blocks of ${index.block} tokens · ${index.policy}, ${index.preemption}${every}`;
  $("#cut").hidden = !index.cut;
  $("#cut").textContent = index.cut ? `Shown up to where reading had to stop: ${index.cut}.` : "";
  $("#preemption").disabled = !requests.preemptions.some(Boolean);
  await follow();
  list();
  window.addEventListener("hashchange", follow);
  document.body.dataset.ready = "";
})();
