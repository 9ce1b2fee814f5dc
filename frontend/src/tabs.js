// What one looks at now and then, below what is always shown. What belongs to a tab is sent while it is open.
import { html } from "htm/preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Alerts } from "./alerts.js";
import { Data } from "./data.js";
import { Hooks, hooksTitle } from "./hooks.js";
import { Inspect } from "./inspect.js";
import { Journal } from "./journal.js";
import { useKept } from "./kept.js";
import { Layers } from "./layers.js";
import { LR } from "./lr.js";
import { More, offersOf } from "./more.js";
import { Runs, runsTitle } from "./runs.js";
import { System } from "./system.js";
import { Table, evaluations } from "./table.js";
import { count } from "./words.js";

export const hasPane = (pane) => ({ run }) => (run.panes ?? []).includes(pane);

// Name, title, what draws it, and the section that it needs; without `there` a tab is always there.
export const TABS = [
  { name: "table", title: (view) => `Table ${count(evaluations(view))}`, part: Table, section: "table" },
  { name: "hooks", title: hooksTitle, part: Hooks, section: "times" },
  { name: "journal", title: ({ journal }) => `Journal ${count(journal?.count ?? 0)}`, part: Journal, section: "entries" },
  { name: "inspect", title: ({ state, place, run }) => (state.name === "paused" && (run.panes ?? []).includes("inspect") ? `Inspect · step ${count(place.step)}` : "Inspect"), part: Inspect, section: "inspect" },
  { name: "lr", title: () => "LR", part: LR, section: "lr" },
  { name: "runs", title: runsTitle, part: Runs, section: "runs", there: ({ may_steer: steers }) => steers !== false },
  { name: "system", title: () => "System", part: System, section: "system", there: hasPane("system") },
  { name: "layers", title: () => "Layers", part: Layers, section: "looks", there: hasPane("layers") },
  { name: "data", title: () => "Data", part: Data, section: "looks", there: hasPane("data") },
  { name: "alerts", title: ({ alerts = {} }) => `Alerts ${count(Object.keys(alerts).length)}`, part: Alerts, there: hasPane("alerts") },
  { name: "more", title: () => "Record", part: More, there: (view) => offersOf(view).length > 0 },
];

export function Tabs(same) {
  const { store, view } = same, id = `${store.prefix}${useId()}`, list = useRef(), [chosen, show] = useKept("tab", null, TABS.map(({ name }) => name));  // also one that is there soon
  const tabs = TABS.filter(({ there }) => !there || there(view)), at = Math.max(0, tabs.findIndex(({ name }) => name === chosen)), tab = tabs[at];
  useEffect(() => (tab.section ? store.open(tab.section) : undefined), [store, tab.section]);
  const choose = (number) => show(tabs[number].name);
  const key = (event) => {
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    const number = (to + tabs.length) % tabs.length;
    event.preventDefault();
    choose(number);
    list.current.children[number].focus();
  };
  return html`<section class="tnb-tabs" aria-label="More of the run"><div class="tabs" role="tablist" aria-label="More of the run" ref=${list} onKeyDown=${key}>
      ${tabs.map(({ name, title }, number) => html`<button type="button" role="tab" key=${name} id=${`${id}-${name}`} data-tab=${name} aria-selected=${number === at} aria-controls=${`${id}-pane`}
        tabindex=${number === at ? 0 : -1} onClick=${() => choose(number)}>${title(view)}</button>`)}</div>
    <div class=${`pane ${tab.name}`} role="tabpanel" key=${tab.name} id=${`${id}-pane`} aria-labelledby=${`${id}-${tab.name}`} tabindex="0"><${tab.part} ...${same} show=${show} /></div></section>`;
}
