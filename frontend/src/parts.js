// Head, hooks and journal.
import { html } from "htm/preact";
import { useRef, useState } from "preact/hooks";
import { capital, clock, count, entryText, isAveraged, newest, phase, short, standing } from "./words.js";

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

export const hooksOf = ({ hooks, points }) => Object.entries(hooks).sort(([, one], [, other]) => one.at - other.at).map(([name, row]) => ({ name, ...points[name], ...row }));

export function Hooks({ store, view, press, off }) {
  return html`<section class="hooks" aria-labelledby="hooks-title"><h2 id="hooks-title">Hooks</h2>
    <table><thead><tr><th>on</th><th>order</th><th>hook</th><th>points</th><th>calls</th><th>seconds</th></tr></thead><tbody>
    ${hooksOf(view).map((row) => html`<tr key=${row.name} data-name=${row.name} class=${row.enabled ? "" : "off"}>
      <td><input type="checkbox" role="switch" aria-label=${`${row.name} on or off`} disabled=${off} checked=${view.values[`${row.name}.enabled`]?.pending ?? row.enabled}
        onChange=${(event) => press("tune", { [`${row.name}.enabled`]: event.target.checked })} /></td>
      <td>${row.order}</td><td><b>${row.name}</b> <span class="quiet">${row.label}</span>${row.error && html`<div class="wrong">${row.error}</div>`}</td>
      <td class="quiet">${(row.points ?? []).join(" · ")}</td><td>${row.calls ? count(row.calls) : "–"}</td><td>${row.seconds === undefined ? "–" : `${row.estimated ? "about " : ""}${short(row.seconds)}`}</td></tr>`)}</tbody></table></section>`;
}

export function Journal({ view, press, off }) {
  const [text, setText] = useState(""), box = useRef(), rows = newest(view);
  const add = async (event) => {
    event.preventDefault();
    const words = text.trim();
    if (words && (await press("note", { text: words })).status === "applied") setText("");
  };
  return html`<section class="journal" aria-labelledby="journal-title"><h2 id="journal-title">Journal</h2>
    <form class="bar" onSubmit=${add}><input ref=${box} aria-label="Note for the journal" maxlength="500" placeholder="Note for the journal" autocomplete="off" disabled=${off} value=${text} onInput=${(event) => setText(event.target.value)} /><button disabled=${off}>Add note</button></form>
    <ol>${rows.map((each) => html`<li key=${each.number} class=${each.undone ? "undone" : ""}><span class="number">${each.number}</span><span class="quiet">step ${count(each.step)} </span><span class="text">${entryText(each)}${each.undone ? " (undone by a rewind)" : ""}</span></li>`)}
    ${rows.length === 0 && html`<li class="quiet">No manual changes yet.</li>`}</ol></section>`;
}
