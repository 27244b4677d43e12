// The feed of the live page: server-sent events by fetch, because a key goes in a header; it asks for the key, and tries again when lost.
"use strict";
const KilburnFeed = (() => {
  const $ = (selector) => document.querySelector(selector);
  const STORED = "kilburn-key";
  const SENDABLE = /^[\x21-\x7e]+$/; // in a header
  let key = sessionStorage.getItem(STORED) || "";

  const headers = (more = {}) => (key ? { authorization: `Bearer ${key}`, ...more } : more);

  // Data of each event of a response; comments and other fields are passed over.
  const events = async function* (response) {
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

  // What an answer that is not 2xx says.
  const reason = async (response) => {
    try {
      return (await response.json()).error.message;
    } catch {
      return `the server answered ${response.status}`;
    }
  };

  // Shows the field for the key; resolves once one was given.
  const askForKey = () => new Promise((resolve) => {
    const note = (text, failed) => { $("#key-note").textContent = text; $("#key-note").classList.toggle("failed", failed); };
    note(key ? "The key was not accepted." : "It stays in this tab.", Boolean(key));
    $("#key").hidden = false;
    if (document.activeElement === document.body) $("#key-value").focus();
    $("#key").onsubmit = (event) => {
      event.preventDefault();
      const given = $("#key-value").value.trim();
      if (!SENDABLE.test(given)) { note("A key holds letters, digits and signs of ASCII only.", true); return; }
      key = given;
      sessionStorage.setItem(STORED, key);
      $("#key").hidden = true;
      resolve();
    };
  });

  // Fetches with the key; where it is refused, asks for another one and fetches again.
  const ask = async (path, options = {}, locked = () => {}) => {
    for (;;) {
      const response = await fetch(path, { ...options, headers: headers(options.headers) });
      if (response.status !== 401) return response;
      locked();
      await askForKey();
    }
  };

  // Follows `/live` for ever: `take(message)` for each event; `lost(why)` when it breaks off; `locked()` when a key is needed.
  const follow = async ({ take, lost, locked }) => {
    let wait = 500;
    for (;;) {
      let why = "";
      try {
        const response = await ask("live", {}, locked);
        if (!response.ok) why = await reason(response);
        else {
          for await (const data of events(response)) {
            wait = 500;
            take(JSON.parse(data));
          }
        }
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // the network's errors are TypeErrors
      }
      lost(why);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 5000);
    }
  };

  return { ask, events, reason, follow };
})();
