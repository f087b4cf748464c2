// Mends what axe finds in the pages of furo and Sphinx.
addEventListener("DOMContentLoaded", () => {
  const each = (selector, attributes) => {
    for (const element of document.querySelectorAll(selector))
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  }
  each("p.caption[role=heading]", { "aria-level": "2" })
  each(".sidebar-drawer", { "aria-label": "All pages" })
  each(".toc-drawer", { "aria-label": "On this page" })
  each(".content-icon-container", { role: "navigation", "aria-label": "Source and theme" })
  each("dt dl", { role: "none" }) // the parameters of a function
  each("pre, .table-wrapper", { tabindex: "0" }) // so that the keyboard can scroll it
  if (!document.querySelector("h1")) document.querySelector("#search-results").insertAdjacentHTML("beforebegin", "<h1>Search</h1>")
})
