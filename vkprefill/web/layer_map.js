// What the last token of a prompt reads in every layer: a strip of colours each, as in `vkprefill explain --all-layers
// --html`.

import { streamChat } from "./api.js";
import { LEVELS } from "./heat_scale.js";
import { count, drawn, element, tokenName } from "./text.js";
import { inWords, problemBox } from "./words.js";

const RANGE = 1000; // the colours of a layer span a thousandth of its greatest weight upwards, on a logarithmic scale
const NOTE =
  "What the last token takes of each token in a dense run, mean over the heads; every layer has its own scale, down to a thousandth of its greatest weight. " +
  "Of attention layers softmax weights. Of delta-net layers the magnitude of how much of the token's value is in the output: exact, less what later tokens removed.";

// The map in `box`, a details element: asked for when it is opened. onToken(t): a token was chosen. Returns { of(body),
// forget() }; body: of the request whose prompt it is to be.
export function layerMap(box, onToken) {
  const place = element("div");
  box.append(place);
  let body = null;
  let asked = null; // the AbortController of a request
  const forget = () => {
    asked?.abort();
    asked = body = null;
    box.open = false;
    box.hidden = true;
    place.replaceChildren();
  };
  const ask = async () => {
    const controller = (asked = new AbortController());
    const stage = element("p", { className: "soft", role: "status" }, "Waiting for the server");
    place.replaceChildren(stage);
    try {
      for await (const chunk of streamChat(
        { ...body, max_tokens: 0, layer_map: true, return_progress: true },
        controller.signal,
      )) {
        if (chunk.prompt_progress) stage.textContent = progressText(chunk.prompt_progress);
        if (chunk.layer_map) place.replaceChildren(table(chunk.layer_map), element("p", { className: "soft" }, NOTE));
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      place.replaceChildren(problemBox(inWords(error)));
      asked = null; // the next opening asks again
    }
  };
  box.addEventListener("toggle", () => {
    if (box.open && body && !asked) ask();
  });
  place.addEventListener("click", ({ target }) => {
    if (target.dataset.start !== undefined) onToken(Number(target.dataset.start));
  });
  return {
    of(newBody) {
      forget();
      body = newBody;
      box.hidden = false;
    },
    forget,
  };
}

function progressText({ stage, processed, total }) {
  return stage === "layers"
    ? `The model reads the prompt in all layers: ${count(processed)} of ${count(total)} tokens`
    : "Waiting for the server";
}

function table({ kinds, bounds, weights }) {
  const rows = weights.map((row, layer) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, `${layer} ${kinds[layer]}`),
      element("td", {}, strip(layer, kinds[layer], bounds, row)),
    ),
  );
  return element("table", { className: "layers" }, ...rows);
}

function strip(layer, kind, bounds, weights) {
  const most = weights.reduce((a, b) => Math.max(a, b), 0);
  const at = bounds[weights.indexOf(most)];
  const label = `layer ${layer}, ${kind}: most of token ${at}, ${most.toPrecision(3)}`;
  const box = `0 0 ${bounds.at(-1)} 1`;
  const svg = drawn("svg", { viewBox: box, preserveAspectRatio: "none", role: "img", "aria-label": label });
  weights.forEach((weight, column) => {
    const [start, end] = [bounds[column], bounds[column + 1]];
    const level = heatLevel(weight, most);
    if (!level) return;
    const title = drawn("title", {}, `layer ${layer}, ${tokenName(start, end)}: ${weight.toPrecision(3)}`);
    const place = { x: start, y: 0, width: end - start, height: 1 };
    svg.append(drawn("rect", { ...place, class: `h${level}`, "data-start": start }, title));
  });
  return svg;
}

function heatLevel(weight, most) {
  if (!(most > 0)) return 0;
  const share = 1 + Math.log(Math.max(weight / most, 1 / RANGE)) / Math.log(RANGE);
  return Math.min(Math.floor(share * LEVELS), LEVELS - 1);
}
