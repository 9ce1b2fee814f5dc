// The head.
import { html } from "htm/preact";
import { useRef, useState } from "preact/hooks";
import { BEST, PinButton, PinList, usePins } from "./pins.js";
import { capital, clock, count, epochOf, isAveraged, ownNames, phase, short, standing } from "./words.js";

const base = (name) => name.split(".")[0];
const LABELS = { samples_per_second: "Samples/s" };

const MEMORY = "memory", MOST = 10;  // usual numbers

// Name of each number that can be chosen to its label; a record, its best value, the memory in use.
export function choicesOf({ numbers = {}, memory }) {
  const found = Object.entries(numbers).flatMap(([name, { best }]) => [{ name, label: LABELS[name] ?? name }, ...(best ? [{ name: BEST + name, label: BEST + name }] : [])]);
  return memory?.used === undefined ? found : [...found, { name: MEMORY, label: memory.label }];
}

// The names that the head shows where nobody has chosen any.
export function usualOf({ numbers = {}, memory }) {
  const rank = (name) => (name === "samples_per_second" ? 2 : base(name) === "grad_norm" ? 1.5 : base(name) === "lr" ? 1 : 0);
  const found = ownNames(Object.keys(numbers)).sort((one, other) => rank(one) - rank(other)).filter((name) => (!name.startsWith("train/") || name.endsWith("/loss")) && !name.startsWith("time/"));
  const drives = [...found.filter((name) => rank(name) > 0), ...(memory?.used === undefined ? [] : [MEMORY])];  // many metrics do not take their place
  return [...found.filter((name) => rank(name) === 0).slice(0, Math.max(MOST - drives.length, MOST / 2)), ...drives].slice(0, MOST);
}

// The names that it shows: of those that were chosen the ones that this run has.
export function shownOf(view, pins) {
  const there = new Set(choicesOf(view).map(({ name }) => name)), found = (pins ?? []).filter((name) => there.has(name));
  return found.length ? found : usualOf(view);
}

function cellOf({ run, state, place, hooks = {}, memory, numbers, values = {} }, name) {
  if (name === MEMORY) return [memory.label, (memory.used / 1e9).toFixed(1), "GB", memory.total ? `of ${(memory.total / 1e9).toFixed(1)} GB` : ""];
  if (!(name in numbers)) {
    const record = name.slice(BEST.length), { value, step } = numbers[record].best;
    return [name, short(value), isAveraged(run, record) ? "average" : "", `at step ${count(step)}`];
  }
  const { value, of, step, best, bad_since: bad } = numbers[name], rates = base(name) === "lr" && values[name]?.each;
  const rule = base(name) === "lr" && state?.name !== "running" ? values[name] : undefined, set = typeof rule?.value === "number" && !rule.moves && !rule.each;
  if (set && short(rule.value) !== short(value)) return [name, short(rule.value), "", `${short(value)} at step ${count(step)}`];  // nothing records it before the next step
  const newest = Math.max(...Object.values(numbers).map((each) => each.step)), old = (of > 1 && newest - step > 2 * of) || (hooks.recorder?.enabled === false && place.step > step);  // no longer recorded; all of them may come later than the step of the run
  const below = old ? `at step ${count(step)}` : bad !== undefined ? `since step ${count(bad)}` : best ? `best ${short(best.value)}` : of > 1 ? `mean of ${of}` : rates ? `groups ${rates.map(short).join(" · ")}` : "";
  return [LABELS[name] ?? name, short(value), isAveraged(run, name) ? "average" : "", below, old ? "old" : bad !== undefined ? "wrong" : ""];
}

// Label, value, unit, what stands below it, and style of the numbers of the head.
export function cellsOf(view, pins = null) {
  const { seconds, fraction } = view.place, left = seconds && fraction ? seconds * (1 / fraction - 1) : undefined;
  return [["Elapsed", clock(seconds), "", ""], ["Left", clock(left), "", ""], ...shownOf(view, pins).map((name) => cellOf(view, name))];
}

export function Head({ view }) {
  const [pins, choose] = usePins(), [open, setOpen] = useState(false), button = useRef();
  const close = () => {
    setOpen(false);
    button.current.focus();
  };
  const { run, place } = view, word = capital(standing(view)), done = place.fraction;
  const epoch = epochOf({ ...place, batch: place.batch || place.phase !== "epoch_start" });
  return html`<header class="tnb-head"><div class="row1">
      <span class="pill" role="status"><i aria-hidden="true"></i>${word}</span><span class="phase">${phase(view)}</span>
      <span class="name">${run.name}</span><span class="space"></span><span class="path">${run.description}</span>
      <span class="place"><span class="key">epoch</span><b>${count(epoch)}</b><span class="quiet">${place.epochs ? ` / ${count(place.epochs)}` : ""}</span></span>
      <span class="place"><span class="key">step</span><b class="step">${count(place.step)}</b><span class="quiet">${place.max_steps ? ` / ${count(place.max_steps)}` : ""}</span></span>
      <span class="percent">${done === undefined ? "" : `${Math.round(100 * done)} %`}</span><${PinButton} ...${{ open, setOpen, button }} /></div>
    <progress max="1" value=${done ?? 0} aria-label="Progress of the run"></progress>
    <div class="numbers">${cellsOf(view, pins).map(([label, value, unit, below, style]) => html`<div key=${label} title=${`${label} ${value} ${unit} ${below}`}>
      <div class="label">${label}</div><div class=${`value ${value === "–" ? "none" : style ?? ""}`}><span>${value}</span> <small>${unit}</small></div><div class="what">${below}</div></div>`)}</div>
    ${open && html`<${PinList} names=${choicesOf(view)} shown=${shownOf(view, pins)} ...${{ pins, choose, close }} />`}</header>`;
}
