/* Counts down to when a request may be tried again. The page works without it, and nothing is sent by itself. */
"use strict";

(() => {
  const text = document.getElementById("rlock-retry");
  const number = text?.querySelector("span");
  let left = Number(text?.dataset.seconds);
  if (!number || !left) {
    return;
  }
  // Only the end is read out.
  text.setAttribute("aria-live", "off");
  const ticking = setInterval(() => {
    left -= 1;
    if (left > 0) {
      number.textContent = left;
      return;
    }
    clearInterval(ticking);
    text.setAttribute("aria-live", "polite");
    text.textContent = text.dataset.now;
  }, 1000);
})();
