// Where something was changed by hand: numbers of the journal on the curves, what was done on hover.
import { column } from "./store.js";
import { count, isBranch } from "./words.js";

const KINDS = ["tune", "hook", "assign", "rewind"], MARK = "#7d50e6";

// plotly reads a text as HTML of its own; a name is what it is.
export const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// What is in force of what was changed, the oldest first.
export const changesOf = ({ journal }) => Object.entries(journal?.entries ?? {}).map(([number, entry]) => ({ number: Number(number), ...entry }))
  .filter(({ kind, undone }) => KINDS.includes(kind) && !undone).sort((one, other) => one.step - other.step || one.number - other.number);

const longestOf = (curves) => Object.entries(curves).filter(([name]) => !isBranch(name)).map(([, curve]) => curve).reduce((long, each) => (each.rows.length > (long?.rows.length ?? 0) ? each : long), null);

export const numbersOf = ({ changes }) => (changes.length > 1 ? `${changes[0].number}–${changes.at(-1).number}` : String(changes[0].number));

const sizeOf = (spot) => Math.max(15, 6 * numbersOf(spot).length + 3);  // pixels

// Places on the x-axis, each with its changes; those whose discs would touch on an axis of `width` pixels share one.
export function spotsOf(changes, curves, xOf, width = 900) {
  const longest = longestOf(curves);
  if (!longest || !changes.length) return [];
  const steps = column(longest, "step"), places = xOf(longest), pixel = places.at(-1) / Math.max(200, width), spots = [];
  const touch = (one, other) => other.x - one.x < pixel * (3 + (sizeOf(one) + sizeOf(other)) / 2);
  let at = 0;
  for (const change of changes) {
    while (at < steps.length - 1 && steps[at] < change.step) at++;
    const x = places[at];
    spots.push({ x, changes: [change] });
    while (spots.length > 1 && touch(spots.at(-2), spots.at(-1))) {  // together they have a wider disc
      const { changes: joined } = spots.pop();
      spots.at(-1).changes.push(...joined);
    }
  }
  return spots;
}

const wordsOf = ({ number, step, what, change, source, by }) => literal(`${number} · step ${count(step)}: ${[what, change].filter((each) => each !== undefined && each !== "").join(" ")} (${[source, by].filter(Boolean).join(", ")})`);

// Discs at the top of the losses, on an axis of their own.
export function markTraces(spots) {
  const numbers = spots.map(numbersOf);
  return spots.length === 0 ? [] : [{
    type: "scatter", mode: "markers+text", name: "by hand", xaxis: "x", yaxis: "y99", cliponaxis: false, showlegend: false, x: spots.map(({ x }) => x), y: spots.map(() => 0.955), text: numbers,
    textfont: { size: 10, color: "#fff" }, marker: { size: spots.map(sizeOf), color: MARK, opacity: 1, line: { width: 0 } },
    customdata: spots.map(({ changes }) => changes.map(wordsOf).join("<br>")), hovertemplate: "%{customdata}<extra></extra>",
  }];
}

export const markLines = (spots) => spots.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "y domain", y0: 0, y1: 1, opacity: 0.45, line: { color: MARK, width: 1 } }));

export const MARK_AXIS = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
