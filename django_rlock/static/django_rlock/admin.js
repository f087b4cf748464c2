/* Refreshes the locks on a page of the admin, and ticks all of them. The pages work without it. */
"use strict";

(() => {
  const form = document.getElementById("rlock-form");
  const every = Number(document.getElementById("rlock-live")?.dataset.refresh) * 1000;
  const status = document.getElementById("rlock-status");
  let paused = false;

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
      const response = await fetch(location.href, { credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("rlock-live");
      if (!response.ok || fresh === null) {
        throw new Error(response.status);
      }
      // Something may have been ticked while the answer was on its way.
      if (!paused && !inUse()) {
        live().replaceWith(document.adoptNode(fresh));
        prepare();
        show("on");
      }
    } catch {
      show("failed");
    }
  }

  function prepare() {
    const all = document.getElementById("rlock-all");
    if (all) {
      all.hidden = false;
    }
  }

  function tick(event) {
    if (event.target.id === "rlock-all") {
      live().querySelectorAll(".action-select").forEach((box) => { box.checked = event.target.checked; });
    } else if (event.target.matches(".action-select") && !event.target.checked) {
      document.getElementById("rlock-all").checked = false;
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
