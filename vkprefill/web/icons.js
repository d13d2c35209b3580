// The page's signs: lines on a grid of 24 by 24, in the colour of the text beside them.

import { drawn } from "./text.js";

const LINES = {
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4v6M9 14v6",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.4a1.7 1.7 0 0 1-2.3-2.3L14.5 7",
  send: "M12 19V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  close: "M6 6l12 12M18 6L6 18",
  left: "M15 5l-7 7 7 7",
  right: "M9 5l7 7-7 7",
  book: "M4 5h6a2 2 0 0 1 2 2v12a2 2 0 0 0-2-1H4zM20 5h-6a2 2 0 0 0-2 2v12a2 2 0 0 1 2-1h6z",
  file: "M14 3H6v18h12V7zM14 3v4h4M9 12h6M9 16h6",
  thought: "M9 18h6M10 21h4M8 14a6 6 0 1 1 8 0c-.7.6-1 1.200-1 2H9c0-.8-.3-1.400-1-2z",
  map: "M4 6h6M13 6h7M4 12h10M17 12h3M4 18h4M11 18h9",
};

export function icon(name) {
  const attributes = { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" };
  return drawn("svg", attributes, drawn("path", { d: LINES[name] }));
}

// Puts its sign before the words of each node that names one.
export function drawIcons(root = document) {
  for (const node of root.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
}
