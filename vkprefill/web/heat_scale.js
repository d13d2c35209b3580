// Importance -> heat, 0 to 1 for each token: by its size on a logarithmic scale, as `vkprefill explain --html` has it,
// or by rank.

export const LEVELS = 8;
const RANGE = 30; // the colours span importance from a thirtieth of the greatest upwards, on a logarithmic scale
const TOP_RANK = 100; // the hottest colour is that of the hundredth part with the greatest importance

export const levelsOf = (heat) => heat.map((value) => Math.min(Math.floor(LEVELS * value), LEVELS - 1));

const short = (value) => Number(value.toPrecision(2));

// { heat, low, top }: low and top say what the ends of the colours mean.
export function bySize(importance) {
  const { low, top } = ends(importance);
  const heat =
    low > 0
      ? importance.map((value) => Math.min(Math.log(Math.max(value, low) / low) / Math.log(RANGE), 1))
      : importance.map(() => 0);
  return { heat, low: `importance \u2264 ${short(low)}`, top: `\u2265 ${short(top)}` };
}

// The top is the 99th percentile: a few tokens may have far more than all others.
function ends(importance) {
  const sorted = Float64Array.from(importance).sort();
  const at = (sorted.length - 1) * 0.99;
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  const percentile = sorted[below] + (at - below) * (sorted[above] - sorted[below]);
  const top = percentile > 0 ? percentile : sorted[sorted.length - 1];
  return { low: top / RANGE, top };
}

// Each colour is a share of the tokens: the hottest the first hundredth, and each further one about twice as many.
// Equal ones share a rank.
export function byRank(importance) {
  const sorted = Float64Array.from(importance.filter((value) => value > 0))
    .sort()
    .reverse();
  const ranks = new Map();
  sorted.forEach((value, i) => ranks.has(value) || ranks.set(value, i + 1));
  const heat = importance.map((value) =>
    value > 0 ? Math.min(Math.log(sorted.length / ranks.get(value)) / Math.log(TOP_RANK), 1) : 0,
  );
  return { heat, low: "least important", top: "first 1 %" };
}
