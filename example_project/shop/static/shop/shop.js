// Refreshes the lanes, the accident and the reports, and sends the forms without leaving the page.
"use strict";

const QUICK = 300; // milliseconds between two looks while something goes on
const SLOW = 1500; // and while nothing does

const NAMES = { sold_out: "sold out", pending: "waits" };

function showTiles(box, tiles) {
  while (box.children.length > tiles.length) box.lastChild.remove();
  while (box.children.length < tiles.length) box.append(document.createElement("span"));
  tiles.forEach((tile, index) => {
    const shown = box.children[index];
    if (shown.className === `tile ${tile}`) return;
    shown.className = `tile ${tile}`;
    shown.title = `Buyer ${index + 1}: ${NAMES[tile] ?? tile}`;
  });
}

// Shows a lane; returns what is to be announced.
function showLane(lane) {
  const card = document.querySelector(`[data-lane="${lane.lane}"]`);
  const wasBusy = card.dataset.tone === "busy";
  card.dataset.tone = lane.tone;
  card.querySelector(".verdict").textContent = lane.verdict;
  showTiles(card.querySelector(".tiles"), lane.tiles);
  for (const [name, count] of Object.entries(lane.totals)) {
    card.querySelector(`[data-total="${name}"]`).textContent = count;
  }
  const link = card.querySelector(".lock-link");
  if (link && lane.lock_url) {
    link.hidden = false;
    link.firstElementChild.href = lane.lock_url;
  }
  return wasBusy && lane.tone !== "busy" ? [`${lane.title}: ${lane.verdict}.`] : [];
}

function showAccident(accident) {
  const card = document.querySelector(".accident");
  const events = card.querySelector(".events");
  if (accident.events.length > events.children.length) announce(accident.events.at(-1).text);
  const items = accident.events.map((event) => {
    const item = document.createElement("li");
    const at = document.createElement("span");
    at.textContent = event.at;
    item.append(at, event.text);
    return item;
  });
  events.replaceChildren(...items);
  card.dataset.phase = accident.phase;
  card.querySelector("button").disabled = isGoingOn(accident);
  card.querySelector(".lease").hidden = accident.lease === null;
  card.querySelector("progress").value = accident.lease ?? 0;
  card.querySelector("#lease-left").textContent = `The dead holder’s lease ends in ${Math.round(accident.lease ?? 0)} s`;
}

function isGoingOn(accident) {
  return accident.phase === "busy" || accident.phase === "killed";
}

function showReports(reports) {
  const items = reports.map((report) => {
    const item = document.createElement("li");
    item.value = report.id;
    item.dataset.state = report.state;
    item.textContent = report.outcome;
    return item;
  });
  document.querySelector(".reports").replaceChildren(...items);
  document.querySelector(".none").hidden = reports.length > 0;
}

function announce(text) {
  document.getElementById("announcer").textContent = text;
}

function isSelling(state) {
  return state.lanes.some((lane) => lane.tone === "busy");
}

function isBusy(state) {
  return isSelling(state) || isGoingOn(state.accident)
    || state.reports.some((report) => report.state === "queued" || report.state === "running");
}

let timer;

async function refresh() {
  clearTimeout(timer);
  let pause = SLOW;
  try {
    const answer = await fetch(document.body.dataset.statusUrl);
    const state = await answer.json();
    const ended = state.lanes.flatMap(showLane);
    if (ended.length) announce(ended.join(" "));
    showAccident(state.accident);
    showReports(state.reports);
    document.getElementById("start").disabled = isSelling(state);
    if (isBusy(state)) pause = QUICK;
  } catch {
    // The site is away or starts again: the next look will tell.
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, pause);
}

// A login in another tab gives the browser a new token; that of this page is refused from then on.
function content(form) {
  const data = new FormData(form);
  const token = document.cookie.match(/(?:^|; )csrftoken=([^;]*)/)?.[1];
  if (token) data.set("csrfmiddlewaretoken", token);
  return data;
}

async function send(event) {
  event.preventDefault();
  const form = event.target;
  const problem = document.getElementById("problem");
  try {
    const answer = await fetch(form.action, { method: "POST", body: content(form), redirect: "manual" });
    problem.hidden = answer.type === "opaqueredirect"; // where a browser without this script would go now
  } catch {
    problem.hidden = false;
  }
  refresh();
}

document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", send));
document.addEventListener("visibilitychange", refresh);
refresh();
