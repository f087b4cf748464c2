/* Refreshes the locks on a page of the admin, and ticks all of them. The pages work without it. */
"use strict";

(() => {
  const form = document.getElementById("rlock-form");
  const every = Number(document.getElementById("rlock-live")?.dataset.refresh) * 1000;
  const status = document.getElementById("rlock-status");
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let paused = false;
  let etag = null;
  let shownSince = performance.now();

  const live = () => document.getElementById("rlock-live");

  // Whoever is about to act on what the page shows must not have it change under the hand.
  const inUse = () =>
    document.hidden ||
    live().querySelector("input:checked") !== null ||
    document.getElementById("content-main").contains(document.activeElement);

  function show(key) {
    const text = status?.querySelector("[role=status]");
    // Only changes are written, because each one is read out.
    if (text && text.textContent !== status.dataset[key]) {
      text.textContent = status.dataset[key];
      status.querySelector("button").textContent = paused ? status.dataset.resume : status.dataset.pause;
    }
  }

  async function refresh() {
    if (paused || inUse()) {
      return;
    }
    try {
      const headers = { "X-Rlock-Refresh": "1", ...(etag && { "If-None-Match": etag }) };
      const response = await fetch(location.href, { credentials: "same-origin", headers });
      if (response.status === 304) {
        letTimePass();
        show("on");
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("rlock-live");
      if (!response.ok || fresh === null) {
        throw new Error(response.status);
      }
      // Something may have been ticked while the answer was on its way.
      if (!paused && !inUse()) {
        live().replaceWith(document.adoptNode(fresh));
        etag = response.headers.get("ETag");
        shownSince = performance.now();
        prepare();
        show("on");
      }
    } catch {
      show("failed");
    }
  }

  // Nothing else has changed: durations go on from where the server had them.
  function letTimePass() {
    const passed = (performance.now() - shownSince) / 1000;
    live().querySelectorAll("time[data-seconds]").forEach((time) => {
      time.textContent = duration(Math.max(0, Number(time.dataset.seconds) + Number(time.dataset.step) * passed));
    });
    live().querySelectorAll("meter").forEach((meter) => {
      meter.dataset.seconds ??= meter.value;
      meter.value = Number(meter.dataset.seconds) - passed;
    });
  }

  function duration(seconds) {
    const name = (unit) => live().dataset[unit];
    if (seconds < 60) {
      return `${seconds.toFixed(1)} ${name("s")}`;
    }
    const first = units.findIndex(([, size]) => seconds >= size);
    const [[unit, size], [smallUnit, smallSize]] = units.slice(first, first + 2);
    return `${Math.floor(seconds / size)} ${name(unit)} ${Math.floor((seconds % size) / smallSize)} ${name(smallUnit)}`;
  }

  function prepare() {
    const all = document.getElementById("rlock-all");
    if (all) {
      all.hidden = false;
    }
    countTicked();
  }

  function tick(event) {
    if (event.target.id === "rlock-all") {
      live().querySelectorAll(".action-select").forEach((box) => { box.checked = event.target.checked; });
    } else if (event.target.matches(".action-select") && !event.target.checked) {
      document.getElementById("rlock-all").checked = false;
    }
    countTicked();
  }

  // Without a tick there is nothing to free, and with some the button says how many.
  function countTicked() {
    const button = live().querySelector(".rlock-force");
    if (button) {
      const ticked = live().querySelectorAll(".action-select:checked").length;
      button.disabled = ticked === 0;
      button.querySelector(".rlock-count").textContent = ticked ? ` (${ticked})` : "";
    }
  }

  if (form === null) {
    return;
  }
  form.addEventListener("change", tick);
  prepare();
  if (every) {
    setInterval(refresh, every);
    document.addEventListener("visibilitychange", refresh);
    if (status) {
      status.hidden = false;
      status.querySelector("button").addEventListener("click", (event) => {
        paused = !paused;
        event.currentTarget.blur();
        show(paused ? "off" : "on");
      });
      show("on");
    }
  }
})();
