// The curves of other runs, behind the own ones: thinner, in the ink and the dash of their run.
import { html } from "htm/preact";
import { literal } from "./marks.js";
import { column } from "./store.js";
import { isBranch, recordOf } from "./words.js";

export const RUN_INKS = ["#3f83e8", "#dd7023", "#1a9e96", "#b0578d", "#8a7a2e", "#7d50e6", "#d9544d", "#5b9e3a", "#5b6fb5", "#c08a1e"];
export const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

// The first two inks are those of the run that one looks at.
const place = (number) => Number(number) + 1;
export const inkOf = (number) => RUN_INKS[place(number) % RUN_INKS.length];
export const dashOf = (number) => DASHES[Math.floor(place(number) / RUN_INKS.length) % DASHES.length];

// A short line in a legend or a table.
export const lineOf = (number) => ({ borderColor: inkOf(number), borderTopStyle: { solid: "solid", dot: "dotted" }[dashOf(number)] ?? "dashed" });

// The runs that are shown: number, name and curves, which may come a moment later.
export const behindOf = ({ view, others }) => Object.entries(view?.drawn?.runs ?? {}).map(([number, { name }]) => ({ number, name, curves: others[number] ?? {} }));

// All runs, where none of them is looked at more than the others.
export const allOf = (store) => [...(store.ownHidden ? [] : [{ number: "0", name: store.view?.runs?.rows?.[0]?.name ?? store.view?.run?.name ?? "", curves: store.curves }]), ...behindOf(store)];

// Steps from one row of a curve to the next: the points of a run that has ended are means already.
export function stepsOf(curve) {
  const steps = column(curve, "step");
  return steps.length > 1 ? Math.max(1, (steps.at(-1) - steps[0]) / (steps.length - 1)) : 1;
}

const MOST_DRAWN = 20_000;  // points of all other runs together: plotly draws them again with each new point of the own one
const kept = new WeakMap();  // what was made of a curve, which does not change

function pointsOf(curve, noisy, most, { axis, xOf, smoothed, window }) {
  const key = [axis, noisy && window, most].join(" ");
  if (kept.get(curve)?.key === key) return kept.get(curve);
  const mean = column(curve, "mean"), x = xOf(curve), y = noisy ? smoothed(mean, window / stepsOf(curve)) : mean, every = Math.ceil(x.length / most);
  const thin = (values) => (every > 1 ? values.filter((_, at) => at % every === 0 || at === values.length - 1) : values);
  const made = { key, x: thin(x), y: thin(y) };
  kept.set(curve, made);
  return made;
}

// `plotOf` gives the number of the plot of a record, or undefined; `isNoisy` says which ones are smoothed; `front`: nothing is before them.
export function behindTraces(runs, { plotOf, isNoisy, hidden, front = false, ...how }) {
  const drawn = [];
  for (const { number, name: run, curves } of runs) {
    if (hidden.has(`#${number}`)) continue;
    const several = Object.keys(curves).filter((name) => !isBranch(name) && plotOf(name) === 0).length > 1;
    for (const [name, curve] of Object.entries(curves)) {
      const kind = recordOf(name), plot = plotOf(kind);
      if (plot !== undefined && !hidden.has(kind)) drawn.push({ number, kind, plot, curve, branch: name !== kind, title: literal(plot === 0 && several ? `${run} · ${kind}` : run) });
    }
  }
  const most = Math.max(60, Math.min(700, Math.floor(MOST_DRAWN / drawn.length)));
  return drawn.map(({ number, kind, plot, curve, branch, title }) => {
    const noisy = isNoisy(kind), { x, y } = pointsOf(curve, noisy, most, how), dots = plot === 0 && !noisy && !branch && x.length <= 60;
    return {
      type: "scatter", mode: dots ? "lines+markers" : "lines", name: title, xaxis: `x${plot || ""}`, yaxis: `y${plot || ""}`, showlegend: false, x, y,
      line: { color: inkOf(number), width: branch ? 1 : front ? 2 : 1.25, dash: branch ? "dot" : dashOf(number) }, opacity: branch ? 0.45 : front ? 1 : 0.75, marker: { size: 3.5 }, ...(branch ? { hoverinfo: "skip" } : { hovertemplate: "%{y:.5g}" }),
    };
  });
}

const MOST = 12;  // names in the legend

export function RunLegend({ runs, hidden, toggle }) {
  return html`<div class="legend wrap runs-legend">${runs.slice(0, MOST).map(({ number, name }) => {
    const on = !hidden.has(`#${number}`);
    return html`<button type="button" key=${number} aria-pressed=${on} title=${`${on ? "Hide" : "Show"} ${name} on this page`} onClick=${() => toggle(`#${number}`)}><s style=${lineOf(number)}></s><span>${name}</span></button>`;
  })}${runs.length > MOST && html`<span>and ${runs.length - MOST} more in the table of runs</span>`}</div>`;
}
