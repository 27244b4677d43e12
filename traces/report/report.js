// What a report does beside being read: one pointer over all charts of a part, maps, tables that sort and search, and paper.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const digits = (v) => Math.abs(v) >= 100 || Number.isInteger(v) ? Math.round(v).toLocaleString("en-US") : Math.abs(v) >= 10 ? v.toFixed(1) : Math.abs(v) >= 0.1 ? v.toFixed(2) : v === 0 ? "0" : v.toPrecision(2);
  const time = (ms) => ms < 1000 ? `${ms >= 100 ? ms.toFixed(0) : Number(ms.toPrecision(3))} ms` : ms < 600000 ? `${Number((ms / 1000).toPrecision(3))} s` : `${(ms / 60000).toFixed(1)} min`;
  const say = (v, unit) => unit === "%" ? `${(100 * v).toFixed(1)} %` : unit === "ms" ? time(v) : unit === "s" ? time(1000 * v) : digits(v);
  const clock = (s) => {
    if (s < 60) return `${Number(s.toPrecision(3))} s`;
    const whole = Math.round(s), h = Math.floor(whole / 3600), two = (n) => String(n).padStart(2, "0");
    const m = Math.floor((whole % 3600) / 60);
    return h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
  };

  // The first place whose value is not below `wanted`.
  const find = (values, wanted) => {
    let low = 0, high = values.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low;
  };

  // A part with one pointer: `show(share, event)` puts it where the pointer is, `step(n)` moves it by keys, `rest()` takes it away.
  const pointable = (root, plots, { show, step, rest }) => {
    const follow = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      root.classList.add("pointed");
      show((event.clientX - box.left) / box.width, 1 - (event.clientY - box.top) / box.height, event.currentTarget);
    };
    const leave = () => { root.classList.remove("pointed"); rest(); };
    for (const plot of plots) {
      plot.addEventListener("pointermove", follow);
      plot.addEventListener("pointerdown", follow);
      plot.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && document.activeElement !== root) leave(); });
    }
    root.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") leave();
      else if (by) { root.classList.add("pointed"); step(by); event.preventDefault(); }
    });
    root.addEventListener("blur", leave);
  };

  const overTime = (root, part) => {
    const plots = [...root.querySelectorAll("figure .plot")], cells = [...root.querySelectorAll(".readout dd")];
    const crosses = plots.map((plot) => plot.querySelector(".cross")), now = root.querySelector(".now"), said = root.querySelector(".say");
    const end = part.x[part.x.length - 1];
    let at = -1;
    const put = (place, aloud) => {
      at = Math.max(0, Math.min(part.x.length - 1, place));
      const from = at ? part.x[at - 1] : 0, share = (100 * (from + part.x[at])) / 2 / end;
      for (const cross of crosses) cross.style.left = `${share}%`;
      now.style.left = `${share}%`;
      now.className = `now${share < 6 ? " first" : share > 94 ? " last" : ""}`;
      now.textContent = clock((from + part.x[at]) / 2);
      part.lines.forEach((line, i) => { cells[i].textContent = say(line.values[at], line.unit); });
      if (aloud) said.textContent = `${now.textContent}: ${part.lines.map((line, i) => `${line.label} ${cells[i].textContent}`).join(", ")}`;
    };
    pointable(root, plots, {
      show: (x) => put(find(part.x, x * end)),
      step: (by) => put(at < 0 ? (by > 0 ? 0 : part.x.length - 1) : at + by, true),
      rest: () => { at = -1; said.textContent = ""; for (const cell of cells) cell.textContent = cell.dataset.rest; },
    });
  };

  // Curves: the pointer is at one x, or at one y, in all charts of the part.
  const curves = (root, part) => {
    root.classList.toggle("by-y", part.byY);
    const figures = [...root.querySelectorAll(".chart")], said = root.querySelector(".say");
    const plots = figures.map((figure) => figure.querySelector(":scope > .plot"));
    let at = -1;
    const placed = (axis, value) => axis[2] ? Math.log(value / axis[0]) / Math.log(axis[1] / axis[0]) : (value - axis[0]) / (axis[1] - axis[0]);
    const valued = (axis, place) => axis[2] ? axis[0] * (axis[1] / axis[0]) ** place : axis[0] + place * (axis[1] - axis[0]);
    const put = (value, aloud) => {
      at = value;
      const words = [];
      part.charts.forEach((chart, i) => {
        const axis = part.byY ? chart.y : chart.x, share = Math.max(0, Math.min(1, placed(axis, value)));
        const cross = plots[i].querySelector(".cross");
        if (part.byY) cross.style.top = `${100 * (1 - share)}%`; else cross.style.left = `${100 * share}%`;
        const cells = figures[i].querySelectorAll(".readout dd");
        chart.curves.forEach((curve, k) => {
          const along = part.byY ? curve.y : curve.x, across = part.byY ? curve.x : curve.y;
          if (!along.length) return;
          const place = find(along, value);
          const there = part.byY ? `${say(value, chart.yUnit)} within ${say(across[place], chart.xUnit)}` : `${say(across[place], chart.yUnit)} at ${chart.xNames?.[along[place]] ?? say(along[place], chart.xUnit)}`;
          cells[k].textContent = there;
          words.push(`${curve.label} ${there}`);
        });
      });
      if (aloud) said.textContent = words.join(", ");
    };
    pointable(root, plots, {
      show: (x, y, plot) => {
        const chart = part.charts[plots.indexOf(plot)];
        put(part.byY ? Math.max(0, Math.min(1, valued(chart.y, y))) : valued(chart.x, x));
      },
      step: (by) => {
        if (part.byY) return put(Math.max(0, Math.min(1, at < 0 ? 0.5 : at + by / 100)), true);
        const all = part.charts[0].curves[0].x;
        const from = at < 0 ? -1 : find(all, at);
        put(all[Math.max(0, Math.min(all.length - 1, from + by))], true);
      },
      rest: () => { at = -1; said.textContent = ""; for (const cell of root.querySelectorAll(".readout dd")) cell.textContent = cell.dataset.rest; },
    });
  };

  const unpack = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };

  const views = [];
  const tabs = (root) => {
    const tabs = [...root.querySelectorAll('[role="tab"]')], panels = [...root.querySelectorAll(".moment")];
    const choose = (chosen, focus) => tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === chosen));
      tab.tabIndex = i === chosen ? 0 : -1;
      panels[i].classList.toggle("hidden", i !== chosen);
      if (i === chosen && focus) tab.focus();
    });
    tabs.forEach((tab, i) => {
      tab.addEventListener("click", () => choose(i));
      tab.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by) choose((i + by + tabs.length) % tabs.length, true);
      });
    });
    return panels;
  };
  const maps = (root, part) => {
    const panels = tabs(root);
    return Promise.all(part.moments.map(async (moment, i) => {
      const view = new KilburnView.BlockMap(panels[i].querySelector(".map"));
      view.blockSize = moment.blockSize;
      view.apply(await unpack(moment.packed));
      view.tell();
      views.push(view);
    }));
  };

  // A cell as a number: times of any unit compare with each other.
  const units = { ms: 1, s: 1000, min: 60000, h: 3600000 };
  const number = (text) => {
    const [, amount, unit] = /^\$?(-?[\d.,]+)\s*(\S*)/.exec(text) ?? [];
    const value = amount === undefined ? NaN : parseFloat(amount.replaceAll(",", ""));
    return Number.isNaN(value) ? -Infinity : value * (units[unit] ?? 1);
  };
  const table = (root) => {
    const body = root.querySelector("tbody"), heads = [...root.querySelectorAll("th")], rows = [...body.rows];
    const found = root.querySelector(".found"), box = root.querySelector("input");
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = head.classList.contains("t") ? (row) => row.cells[column].textContent : (row) => number(row.cells[column].textContent);
      const keyed = rows.map((row) => [key(row), row]);
      keyed.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1));
      body.append(...keyed.map(([, row]) => row));
    }));
    box.addEventListener("input", () => {
      const wanted = box.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = wanted !== "" && ![...row.cells].some((cell) => cell.textContent.toLowerCase().includes(wanted));
        shown += !row.hidden;
      }
      found.textContent = wanted ? `${shown.toLocaleString("en-US")} of ${rows.length.toLocaleString("en-US")} rows` : "";
    });
  };

  const ready = [];
  for (const [name, part] of Object.entries(data)) {
    const root = document.getElementById(name);
    ready.push({ time: overTime, xy: curves, maps, tabs }[part.kind](root, part));
  }
  for (const root of document.querySelectorAll(".table.tools")) table(root);

  // Paper is light and shows every map, whatever the screen shows.
  const repaint = () => { for (const view of views) { view.colours = KilburnView.palette(); view.layout(); view.redraw(); view.legend(); } };
  const paper = (on) => { document.documentElement.toggleAttribute("data-print", on); for (const panel of document.querySelectorAll(".moment")) panel.style.display = on ? "block" : ""; repaint(); };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  Promise.all(ready).then(() => { document.documentElement.dataset.ready = ""; });
})();
