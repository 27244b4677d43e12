// The box to chat: one conversation, with one answer or several to each question; the first of several is what goes on.
"use strict";
(() => {
  const $ = (selector) => document.querySelector(selector);
  const talk = $("#talk"), empty = talk.innerHTML;
  let messages = [], stop = null;

  const line = (who, text = "") => {
    const p = document.createElement("p"), by = document.createElement("span"), said = document.createElement("span");
    by.className = "who";
    by.textContent = who;
    said.textContent = text;
    p.append(by, said);
    return { p, said };
  };

  const show = (...lines) => {
    talk.querySelector("p.quiet")?.remove();
    talk.append(...lines);
    talk.scrollTop = talk.scrollHeight;
  };

  // Paragraphs for the answers to come, side by side where there is room.
  const answers = (count) => {
    const lines = Array.from({ length: count }, (_, i) => line(count > 1 ? `answer ${i + 1}` : "answer"));
    const group = document.createElement("div");
    group.className = "answers";
    group.append(...lines.map(({ p }) => p));
    show(group);
    return lines.map(({ said }) => said);
  };

  const fail = (said, why) => {
    const note = document.createElement("span");
    note.className = "failed";
    note.textContent = `${said.textContent ? " " : ""}(${why})`;
    said.append(note);
  };

  const bounded = (input) => {
    const typed = input.value.trim() && Number.isFinite(Number(input.value)) ? Number(input.value) : Number(input.defaultValue);
    const value = input.step ? typed : Math.round(typed);
    input.value = Math.max(Number(input.min), Math.min(Number(input.max), value));
    return Number(input.value);
  };

  const stream = async (body, said) => {
    const texts = said.map(() => "");
    const response = await KilburnFeed.ask("v1/chat/completions", {
      method: "POST", signal: stop.signal, headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(await KilburnFeed.reason(response));
    for await (const data of KilburnFeed.events(response)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      for (const choice of chunk.choices) {
        if (!choice.delta.content) continue;
        texts[choice.index] += choice.delta.content;
        said[choice.index].textContent = texts[choice.index];
      }
      talk.scrollTop = talk.scrollHeight;
    }
  };

  const send = async () => {
    const text = $("#question").value.trim();
    if (!text || stop) return;
    const n = bounded($("#choices")), asked = messages;
    $("#question").value = "";
    show(line("you", text).p);
    asked.push({ role: "user", content: text });
    const said = answers(n);
    stop = new AbortController();
    $("#stop").disabled = false;
    $("#send").disabled = true;
    const answer = () => said[0].firstChild?.nodeValue || "";
    try {
      await stream({ messages: asked, stream: true, n, max_tokens: bounded($("#most")), temperature: bounded($("#temperature")) }, said);
    } catch (error) {
      const why = error.name === "AbortError" ? "stopped" : error instanceof TypeError ? "the connection was lost" : error.message;
      said.forEach((each) => fail(each, why));
    }
    if (answer()) asked.push({ role: "assistant", content: answer() });
    else asked.pop();
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
    talk.innerHTML = empty;
  });
})();
