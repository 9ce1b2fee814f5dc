// The head.
import { html } from "htm/preact";
import { capital, clock, count, isAveraged, phase, short, standing } from "./words.js";

const base = (name) => name.split(".")[0];
const LABELS = { samples_per_second: "Samples/s" };

// Label, value, unit, what stands below it, and style of the numbers of the head.
export function cellsOf({ run, place, memory, numbers = {}, values = {} }) {
  const { seconds, fraction } = place, left = seconds && fraction ? seconds * (1 / fraction - 1) : undefined;
  const cells = [["Elapsed", clock(seconds), "", ""], ["Left", clock(left), "", ""]];
  const rank = (name) => (name === "samples_per_second" ? 2 : base(name) === "grad_norm" ? 1.5 : base(name) === "lr" ? 1 : 0);
  for (const [name, { value, of, step, best, bad_since: bad }] of Object.entries(numbers).sort(([one], [other]) => rank(one) - rank(other))) {
    if ((name.startsWith("train/") && !name.endsWith("/loss")) || name.startsWith("time/")) continue;
    const rates = base(name) === "lr" && values[name]?.each;
    const old = of > 1 && place.step - step > 2 * of;  // no longer recorded
    const below = old ? `at step ${count(step)}` : bad !== undefined ? `not finite since step ${count(bad)}` : best ? `best ${short(best.value)}` : of > 1 ? `mean of ${of}` : rates ? `groups ${rates.map(short).join(" · ")}` : "";
    cells.push([LABELS[name] ?? name, short(value), isAveraged(run, name) ? "average" : "", below, old ? "old" : bad !== undefined ? "wrong" : ""]);
  }
  if (memory?.used !== undefined) cells.push([memory.label, (memory.used / 2 ** 30).toFixed(1), "GB", memory.total ? `of ${(memory.total / 2 ** 30).toFixed(1)} GB` : ""]);
  return cells.slice(0, 12);
}

export function Head({ view }) {
  const { run, place } = view, word = capital(standing(view)), done = place.fraction;
  const epoch = place.epoch === undefined ? undefined : Math.min(place.epoch + 1, place.epochs ?? Infinity);
  return html`<header class="tnb-head"><div class="row1">
      <span class="pill" role="status"><i aria-hidden="true"></i>${word}</span><span class="phase">${phase(view)}</span>
      <span class="name">${run.name}</span><span class="space"></span><span class="path">${run.description}</span>
      <span class="place"><span class="key">epoch</span><b>${count(epoch)}</b><span class="quiet">${place.epochs ? ` / ${count(place.epochs)}` : ""}</span></span>
      <span class="place"><span class="key">step</span><b class="step">${count(place.step)}</b><span class="quiet">${place.max_steps ? ` / ${count(place.max_steps)}` : ""}</span></span>
      <span class="percent">${done === undefined ? "" : `${Math.round(100 * done)} %`}</span></div>
    <progress max="1" value=${done ?? 0} aria-label="Progress of the run"></progress>
    <div class="numbers">${cellsOf(view).map(([label, value, unit, below, style]) => html`<div key=${label} title=${`${label} ${value} ${unit} ${below}`}>
      <div class="label">${label}</div><div class=${`value ${value === "–" ? "none" : style ?? ""}`}><span>${value}</span> <small>${unit}</small></div><div class="what">${below}</div></div>`)}</div></header>`;
}
