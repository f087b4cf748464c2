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
  let confirmedAt = shownSince;

  const live = () => document.getElementById("rlock-live");
  const age = document.getElementById("rlock-age");

  // What is ticked must not change before it is acted upon.
  const isTicked = () => live().querySelector(".action-select:checked") !== null;

  function show(key) {
    const text = status?.querySelector("[role=status]");
    document.getElementById("rlock-login")?.toggleAttribute("hidden", key !== "ended");
    // Only changes are written, because each one is read out.
    if (text && text.textContent !== status.dataset[key]) {
      text.textContent = status.dataset[key];
      status.querySelector("button").textContent = paused ? status.dataset.resume : status.dataset.pause;
    }
  }

  async function refresh() {
    if (paused || document.hidden) {
      return;
    }
    if (isTicked()) {
      show("held");
      return;
    }
    try {
      const headers = { "X-Rlock-Refresh": "1", ...(etag && { "If-None-Match": etag }) };
      const response = await fetch(location.href, { credentials: "same-origin", headers });
      if (response.redirected || [401, 403].includes(response.status)) {
        show("ended"); // the link loads this page again, which leads to the login
        return;
      }
      if (response.status === 304) {
        letTimePass();
        confirmedAt = performance.now();
        show("on");
        return;
      }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("rlock-live");
      if (!response.ok || fresh === null) {
        throw new Error(response.status);
      }
      // Something may have been ticked while the answer was on its way.
      if (!paused && !isTicked()) {
        replaceWith(document.adoptNode(fresh));
        etag = response.headers.get("ETag");
        shownSince = confirmedAt = performance.now();
        show("on");
      }
    } catch {
      show("failed");
    }
  }

  // Keyboard focus, selected text and what was unfolded stay where they were.
  function replaceWith(fresh) {
    const focused = live().contains(document.activeElement) ? describe(document.activeElement) : null;
    const selection = getSelection();
    const selected = live().contains(selection.anchorNode) && live().contains(selection.focusNode) && {
      text: selection.toString(),
      from: [placeOf(selection.anchorNode), selection.anchorOffset],
      to: [placeOf(selection.focusNode), selection.focusOffset],
    };
    const unfolded = [...live().querySelectorAll("details")].map((each) => [placeOf(each), each.open]);
    live().replaceWith(fresh);
    prepare();
    unfolded.forEach(([place, open]) => { nodeAt(place)?.toggleAttribute("open", open); });
    if (focused) {
      (alike(focused.name)[focused.number] ?? live()).focus({ preventScroll: true });
    }
    if (selected.text) {
      select(selected);
    }
  }

  // An element by what it is and does, for what comes above it moves it: nothing else may get its focus.
  function describe(element) {
    const name = nameOf(element);
    return { name, number: alike(name).indexOf(element) };
  }

  function nameOf(element) {
    const row = element.closest("[data-key]")?.dataset.key;
    return JSON.stringify([row, element.tagName, element.id, element.getAttribute("href"), element.name, element.value]);
  }

  function alike(name) {
    return [live(), ...live().querySelectorAll("a, button, input, summary")].filter((each) => nameOf(each) === name);
  }

  // A node's place, counted from the nearest element around it that has a name: rows move.
  function placeOf(node) {
    const path = [];
    while (!node.id && !node.dataset?.key) {
      path.unshift([...node.parentNode.childNodes].indexOf(node));
      node = node.parentNode;
    }
    return { id: node.id, key: node.dataset.key, path };
  }

  function nodeAt({ id, key, path }) {
    const named = id ? document.getElementById(id) : live().querySelector(`[data-key="${CSS.escape(key)}"]`);
    return path.reduce((node, number) => node?.childNodes[number], named);
  }

  function select({ text, from: [first, start], to: [last, end] }) {
    const [anchor, focus] = [nodeAt(first), nodeAt(last)];
    try {
      getSelection().setBaseAndExtent(anchor, start, focus, end);
    } catch {
      return; // it is gone
    }
    if (getSelection().toString() !== text) {
      getSelection().removeAllRanges();
    }
  }

  function showAge() {
    const seconds = Math.floor((performance.now() - confirmedAt) / 1000);
    age.textContent = status.dataset.age.replace("{time}", duration(seconds, 0));
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

  function duration(seconds, digits = 1) {
    const name = (part) => live().dataset[part];
    if (seconds < 60) {
      return `${seconds.toFixed(digits).replace(".", name("decimal"))} ${name("s")}`;
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
        show(paused ? "off" : "on");
      });
      show("on");
      showAge();
      setInterval(showAge, 1000);
    }
  }
})();
