// Works without this file: it only loads a page again while an operation is under way.
const waiting = document.querySelector("[data-again]");
if (waiting) setTimeout(() => location.reload(), 1000 * Number(waiting.dataset.again));
