// Works without this file: it only folds a filter that is not set on a phone, and loads a page again while an operation is
// under way.
if (matchMedia("(max-width: 40rem)").matches && !location.search)
  for (const filter of document.querySelectorAll("details.filter")) filter.open = false;
const waiting = document.querySelector("[data-again]");
if (waiting) setTimeout(() => location.reload(), 1000 * Number(waiting.dataset.again));
