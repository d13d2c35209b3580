// Which token of a prompt is looked at: by keyboard, by a tap.

// Arrow keys and taps in `prompt` show the numbers of a token in `line`. Returns { show(t), forget() }.
export function tokenKeys(prompt, line) {
  let at = null;
  const spans = () => [...prompt.querySelectorAll("span[title]")];
  const shown = (token) => token.getClientRects().length > 0;
  const state = (token) => token.parentElement.className;
  const show = (token) => {
    at?.classList.remove("at");
    at = token ?? null;
    line.hidden = at === null;
    if (at === null) return;
    at.classList.add("at");
    at.scrollIntoView({ block: "nearest" });
    line.textContent = `${at.title}, ${state(at)}`;
  };
  const step = (all, from, by) => {
    let i = from + by;
    while (all[i] && !shown(all[i])) i += by;
    if (all[i]) show(all[i]);
  };
  const jump = (all, from, by) => {
    const group = state(all[Math.max(from, 0)]);
    let i = Math.max(from, 0);
    while (all[i + by] && (state(all[i]) === group || !shown(all[i]))) i += by;
    if (shown(all[i])) show(all[i]);
  };
  const keys = {
    ArrowRight: (all, i) => step(all, i, 1),
    ArrowLeft: (all, i) => step(all, i, -1),
    ArrowDown: (all, i) => jump(all, i, 1),
    ArrowUp: (all, i) => jump(all, i, -1),
    Home: (all) => step(all, -1, 1),
    End: (all) => step(all, all.length, -1),
  };
  prompt.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const all = spans();
    if (all.length) keys[event.key](all, at ? all.indexOf(at) : -1);
  });
  prompt.addEventListener("click", (event) => {
    const token = event.target.closest("span[title]");
    if (token) show(token);
  });
  return {
    show: (t) => show(spans().findLast((token) => shown(token) && Number(token.dataset.start) <= t)),
    forget: () => show(null),
  };
}
