// The curves of other runs, behind the own ones: thinner, in the ink and the dash of their run.
import { html } from "htm/preact";
import { column } from "./store.js";

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

// Steps from one row of a curve to the next: the points of a run that has ended are means already.
export function stepsOf(curve) {
  const steps = column(curve, "step");
  return steps.length > 1 ? Math.max(1, (steps.at(-1) - steps[0]) / (steps.length - 1)) : 1;
}

const BASE = (name) => name.split("@")[0];

// `plotOf` gives the number of the plot of a record, or undefined; `isNoisy` says which ones are smoothed.
export function behindTraces(runs, { plotOf, isNoisy, smoothed, xOf, window, hidden }) {
  const made = [];
  for (const { number, name: run, curves } of runs) {
    if (hidden.has(`#${number}`)) continue;
    const several = Object.keys(curves).filter((name) => !name.includes("@") && plotOf(name) === 0).length > 1;
    for (const [name, curve] of Object.entries(curves)) {
      const kind = BASE(name), plot = plotOf(kind);
      if (plot === undefined || hidden.has(kind)) continue;
      const mean = column(curve, "mean"), noisy = isNoisy(kind), branch = name !== kind, color = inkOf(number);
      made.push({
        type: "scatter", mode: plot === 0 && !noisy && !branch ? "lines+markers" : "lines", name: plot === 0 && several ? `${run} · ${kind}` : run, xaxis: `x${plot || ""}`, yaxis: `y${plot || ""}`, showlegend: false,
        x: xOf(curve), y: noisy ? smoothed(mean, window / stepsOf(curve)) : mean, line: { color, width: branch ? 1 : 1.25, dash: branch ? "dot" : dashOf(number) }, opacity: branch ? 0.45 : 0.75, marker: { size: 3.5 },
        ...(branch ? { hoverinfo: "skip" } : { hovertemplate: "%{y:.5g}" }),
      });
    }
  }
  return made;
}

const MOST = 12;  // names in the legend

export function RunLegend({ runs, hidden, toggle }) {
  return html`<div class="legend wrap runs-legend">${runs.slice(0, MOST).map(({ number, name }) => {
    const on = !hidden.has(`#${number}`);
    return html`<button type="button" key=${number} aria-pressed=${on} title=${`${on ? "Hide" : "Show"} ${name} on this page`} onClick=${() => toggle(`#${number}`)}><s style=${lineOf(number)}></s><span>${name}</span></button>`;
  })}${runs.length > MOST && html`<span>and ${runs.length - MOST} more in the tab Runs</span>`}</div>`;
}
