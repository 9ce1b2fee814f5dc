// A part of the x-axis: what is outside is not drawn, so that y follows what is seen, and its bins are finer.
import { column } from "./store.js";
import { isBranch } from "./words.js";

// First and last place of a part among places that ascend, one more on each side: lines run to the edge.
function ends(x, [low, high]) {
  let [from, to] = [0, x.length - 1];
  while (from < to && x[from + 1] <= low) from++;
  while (to > from && x[to - 1] >= high) to--;
  return [from, to + 1];
}

export function cut(trace, range) {
  if (!range) return trace;
  let [from, to] = ends(trace.x, range);
  if (!trace.mode.includes("lines")) {
    while (from < to && trace.x[from] < range[0]) from++;
    while (to > from && trace.x[to - 1] > range[1]) to--;
  }
  return Object.fromEntries(Object.entries(trace).map(([name, value]) => [name, ["x", "y", "customdata"].includes(name) && typeof value !== "string" ? value.slice(from, to) : value]));
}

const BESIDE = 150;  // steps on each side, which a mean at the edge of the part needs: half of the longest

// The steps of a part of the x-axis, and those beside it.
export function stepsIn(curve, xOf, range) {
  const steps = column(curve, "step"), [from, to] = ends(xOf(curve), range);
  return { first: Math.max(0, (from ? Math.floor(steps[from]) : 0) - BESIDE), last: Math.ceil(steps[to - 1]) + BESIDE };
}

// Curves with the finer rows of a part, and what has come after it.
export function withFiner(curves, finer) {
  if (!finer) return curves;
  const made = { ...curves };
  for (const [name, fine] of Object.entries(finer)) {
    const { rows, stride } = curves[name] ?? { stride: 0 };
    if (!(fine.stride < stride) || !fine.rows.length) continue;
    const steps = column(curves[name], "step"), last = column(fine, "step").at(-1), width = rows.length / steps.length;
    let after = steps.length;
    while (after && steps[after - 1] > last) after--;
    const joined = new Float32Array(fine.rows.length + rows.length - after * width);
    joined.set(fine.rows);
    joined.set(rows.subarray(after * width), fine.rows.length);
    made[name] = { stride: fine.stride, rows: joined };
  }
  return made;
}

// Asks for the finer rows of a part; null where there are none.
export async function finerOf(store, curves, xOf, range) {
  const longest = Object.entries(curves).filter(([name]) => !isBranch(name)).map(([, curve]) => curve).reduce((long, each) => (each.rows.length > (long?.rows.length ?? 0) ? each : long), null);
  if (!longest || Object.values(curves).every(({ stride }) => stride === 1)) return null;
  const { curves: heads, buffers } = await store.request({ ask: "span", ...stepsIn(longest, xOf, range) });
  return heads?.length ? Object.fromEntries(heads.map(({ name, stride }, at) => [name, { stride, rows: buffers[at] }])) : null;
}
