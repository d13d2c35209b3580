// A line at the foot of the page that goes by itself, with at most one thing to do.

import { $, button, element } from "./text.js";

const SHOWN_MS = 8000;

let timer = null;

// act: { label, run }
export function toast(text, act = null) {
  const parts = [element("span", {}, text)];
  if (act) {
    parts.push(
      button(act.label, () => {
        hide();
        act.run();
      }),
    );
  }
  $("toast").replaceChildren(...parts);
  $("toast").classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => ($("toast").contains(document.activeElement) ? null : hide()), SHOWN_MS);
}

function hide() {
  clearTimeout(timer);
  $("toast").classList.remove("shown");
  $("toast").replaceChildren();
}
