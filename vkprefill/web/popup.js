// A box that opens beside a button, above it or below, where there is more room; Escape or a click elsewhere closes it.

const GAP = 6; // pixels, to the button and to the edges of the window

export function place(box, opener) {
  const { left, right, top, bottom } = opener.getBoundingClientRect();
  const { offsetWidth: width } = box;
  const above = top > innerHeight - bottom;
  const x = Math.max(GAP, Math.min(left + width + GAP < innerWidth ? left : right - width, innerWidth - width - GAP));
  const room = (above ? top : innerHeight - bottom) - 2 * GAP;
  Object.assign(box.style, { left: `${x}px`, right: "auto", maxHeight: `${room}px` });
  Object.assign(
    box.style,
    above ? { top: "auto", bottom: `${innerHeight - top + GAP}px` } : { top: `${bottom + GAP}px`, bottom: "auto" },
  );
}

// box: a node with the attribute popover.
export function popup(opener, box, onOpen = () => {}) {
  opener.setAttribute("aria-expanded", "false");
  opener.setAttribute("aria-controls", box.id);
  opener.popoverTargetElement = box;
  box.addEventListener("toggle", (event) => {
    const open = event.newState === "open";
    opener.setAttribute("aria-expanded", String(open));
    if (!open) return;
    onOpen();
    place(box, opener);
  });
  addEventListener("resize", () => box.matches(":popover-open") && place(box, opener));
}
