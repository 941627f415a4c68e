// Keeps the open page up to date: follows the agent's events and reloads the page's body after each commit.
"use strict";

const main = document.querySelector("main");
// Delay after a commit, so that a burst of them causes one reload.
const PAUSE = 250;
// Delay before a reconnect.
const AGAIN = 2000;
// The stream sends the index at least every 15 s.
const SILENCE = 40000;
// Ages change while nothing happens.
const REFRESH = 10000;

let waiting = null;
let heard = Date.now();

const stale = (is) => document.body.classList.toggle("stale", is);

async function refresh() {
  waiting = null;
  const answer = await fetch("/ui/body", { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  const open = new Set([...main.querySelectorAll("details[open]")].map((one) => one.id));
  main.innerHTML = await answer.text();
  for (const one of main.querySelectorAll("details")) {
    if (open.has(one.id)) one.open = true;
  }
  stale(false);
}

function soon() {
  heard = Date.now();
  waiting ??= setTimeout(() => refresh().catch(() => stale(true)), PAUSE);
}

async function follow() {
  try {
    const answer = await fetch("/v1/herdlet/events", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    const reader = answer.body.getReader();
    for (;;) {
      const { done } = await reader.read();
      if (done) break;
      soon();
    }
  } catch {
    // Reported below.
  }
  stale(true);
  setTimeout(follow, AGAIN);
}

// Loads an explanation when its row is opened.
main.addEventListener("toggle", async (event) => {
  const place = event.target.querySelector(":scope > [data-explain]");
  if (!event.target.open || !place) return;
  try {
    const answer = await fetch(place.dataset.explain, { cache: "no-store" });
    place.innerHTML = await answer.text();
  } catch {
    stale(true);
  }
}, true);

setInterval(() => {
  if (Date.now() - heard > SILENCE) stale(true);
  else if (!document.hidden) refresh().catch(() => stale(true));
}, REFRESH);
follow();
