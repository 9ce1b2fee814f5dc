// Crosses where a record is not finite: a line has a gap there, which is easily overlooked.
import { literal } from "./marks.js";
import { column } from "./store.js";
import { count } from "./words.js";

export const NOT_FINITE = "not finite";

const BAD = "#e0413a", MOST = 50;  // crosses of a record

// Stretches of rows with values that are not finite: first row, steps from and to, and whether it has not ended. Of a row that is not full yet it is only known whether it has any value.
export function gapsOf(curve) {
  const finite = column(curve, "finite"), steps = column(curve, "step"), found = [];
  for (let row = 0; row < finite.length; row++) {
    if (row < finite.length - 1 ? finite[row] >= curve.stride : finite[row] > 0) continue;
    if (found.at(-1)?.last === row - 1) Object.assign(found.at(-1), { last: row, to: steps[row] });
    else found.push({ row, last: row, from: curve.stride === 1 ? steps[row] : row ? steps[row - 1] + 1 : Math.max(1, steps[row] - curve.stride + 1), to: steps[row] });
  }
  return found.map((each) => ({ ...each, goes: each.last === finite.length - 1 && finite.at(-1) === 0 }));
}

const placeOf = ({ from, to, goes }) => (goes ? `from step ${count(from)} on` : from === to ? `at step ${count(from)}` : `in steps ${count(from)} to ${count(to)}`);

// The crosses of one record, on the level of its lowest value; the pointer reads where and how long.
export function gapTrace(name, curve, xOf, plot) {
  const all = gapsOf(curve), gaps = all.length > MOST ? [all[0], ...all.slice(1 - MOST)] : all;
  if (!gaps.length) return [];
  const x = xOf(curve), level = column(curve, "mean").reduce((least, each) => (each < least ? each : least), Infinity);
  return [{
    type: "scatter", mode: "markers", name: NOT_FINITE, xaxis: `x${plot || ""}`, yaxis: `y${plot || ""}`, showlegend: false, cliponaxis: false, x: gaps.map(({ row }) => x[row]), y: gaps.map(() => (Number.isFinite(level) ? level : 1)),
    marker: { size: plot ? 6 : 8, color: BAD, symbol: "x" },
    customdata: gaps.map((each) => literal(`${name} is not finite ${placeOf(each)}`)), hovertemplate: "%{customdata}<extra></extra>",
  }];
}
