// Keeps an open page as the ledger is. The server makes every part of it; here parts are put in the place of older ones.
"use strict";

const REFRESH_MS = 5000;

let stream = null;
let isOver = false;
let refreshTimer = 0;

function swap(fresh) {
  const old = document.getElementById(fresh.id);
  if (!old || old.isEqualNode(fresh)) return;
  const version = fresh.dataset.version;
  if (version && version === old.dataset.version) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && (focused.id || focused.getAttribute("href"));
  old.replaceWith(document.importNode(fresh, true));
  if (focused) restoreFocus(document.getElementById(fresh.id), name);
}

function restoreFocus(part, name) {
  for (const element of part.querySelectorAll("a, button, summary")) {
    if (name && (element.id === name || element.getAttribute("href") === name)) {
      element.focus();
      return;
    }
  }
  part.tabIndex = -1;
  part.focus({ preventScroll: true });
}

function parsed(text) {
  return new DOMParser().parseFromString(text, "text/html");
}

async function refresh() {
  clearTimeout(refreshTimer);
  refreshTimer = 0;
  if (!document.querySelector("[data-refresh]")) return;
  try {
    const answer = await fetch(location.href, { redirect: "error", headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    for (const fresh of parsed(await answer.text()).querySelectorAll("[data-refresh]")) swap(fresh);
  } catch {
    // the server is away: what is shown stays, and the next time may do
  }
}

function refreshSoon() {
  if (!refreshTimer) refreshTimer = setTimeout(refresh, REFRESH_MS);
}

function listen() {
  const source = document.querySelector("[data-stream]");
  if (!source || stream || isOver) return;
  stream = new EventSource(source.dataset.stream);
  stream.addEventListener("swap", (event) => {
    for (const fresh of parsed(event.data).body.children) swap(fresh);
    refreshSoon();
  });
  stream.addEventListener("end", () => {
    isOver = true;
    hush();
    refresh();
  });
}

function hush() {
  if (stream) stream.close();
  stream = null;
}

// A browser opens few connections to one host: a page that nobody sees holds none.
document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
window.addEventListener("pagehide", hush);
window.addEventListener("pageshow", listen);

for (const select of document.querySelectorAll("select[data-submits]")) {
  select.addEventListener("change", () => select.form.requestSubmit());
}

const every = document.querySelector("[data-refresh-seconds]");
if (every) {
  setInterval(() => document.hidden || refresh(), 1000 * Number(every.dataset.refreshSeconds));
}
