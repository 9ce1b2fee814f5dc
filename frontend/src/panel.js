// The panel of a run, on a page or in a notebook.
import { h, render } from "preact";
import { html } from "htm/preact";
import { useEffect, useReducer, useState } from "preact/hooks";
import { Chart } from "./chart.js";
import { Controls, GoOn, Message, Waiting, useAnswer } from "./controls.js";
import { Data } from "./data.js";
import { Hooks } from "./hooks.js";
import { pageLink, widgetLink } from "./link.js";
import { Layers } from "./layers.js";
import { hidePicture, keepFocus, keepKeys, showAgain } from "./notebook.js";
import { Head } from "./parts.js";
import { Runs } from "./runs.js";
import { Store } from "./store.js";
import { Tabs, hasPane } from "./tabs.js";
import { Tunables } from "./tunables.js";
import { capital, colour, standing } from "./words.js";

function Locked({ link, why }) {
  const [text, setText] = useState("");
  const open = (event) => {
    event.preventDefault();
    link.unlock(text.trim().replace(/^.*token=/, ""));
    setText("");
  };
  return html`<main class="tnb is-error is-cut"><header class="tnb-head"><div class="row1"><span class="pill" role="status"><i aria-hidden="true"></i>Locked</span></div></header>
    <section class="words" aria-live="polite"><p class="message wrong">${why}</p>
    <form class="bar" onSubmit=${open}><label for="token">Token</label><input type="password" id="token" maxlength="500" autocomplete="off" required value=${text} onInput=${(event) => setText(event.target.value)} /><button>Open</button></form></section></main>`;
}

// What a part that is shown alone needs besides what is always sent.
const SECTIONS = { hook_table: "times", layers_pane: "looks", data_pane: "looks", runs: "runs" };

// What a part shows that stands in a tab of the whole panel.
const PANES = {
  hook_table: (same) => html`<div class="pane hooks"><${Hooks} ...${same} /></div>`,
  layers_pane: (same) => html`<div class="pane layers">${hasPane("layers")(same.view) ? html`<${Layers} ...${same} />` : html`<p class="quiet">This run measures no layers: its hooks have no LayerStatsHook.</p>`}</div>`,
  data_pane: (same) => html`<div class="pane data">${hasPane("data")(same.view) ? html`<${Data} ...${same} />` : html`<p class="quiet">This run keeps no samples: its hooks have no SamplesHook.</p>`}</div>`,
};

// Several runs, none of which is before the others: all curves, and below them the table.
function Several({ store, view }) {
  return html`<${Chart} store=${store} all=${true} /><div class="pane runs"><${Runs} ...${{ store, view }} alone=${false} /></div>`;
}

// The whole panel, or one part of it.
export function Panel({ store, part = "dashboard" }) {
  const [, again] = useReducer((number) => number + 1, 0), [open, setOpen] = useState(false), [answer, press] = useAnswer(store);
  useEffect(() => {
    let frame = 0;
    const stop = store.watch(() => { frame ||= requestAnimationFrame(() => { frame = 0; again(); }); });
    again();  // of what came before this was called
    return () => { stop(); cancelAnimationFrame(frame); };
  }, [store]);
  const { view, link: { alone } } = store, Root = alone ? "main" : "section";
  useEffect(() => { if (view && alone) document.title = store.cut ? "No connection" : `${capital(standing(view))} · ${view.run.name}`; });
  useEffect(() => (view ? store.link.drawn?.() : undefined), [!view]);
  useEffect(() => (SECTIONS[part] ? store.open(SECTIONS[part]) : undefined), [store, part]);
  if (store.locked) return html`<${Locked} link=${store.link} why=${store.cut} />`;
  if (!view) return html`<${Root} class="tnb is-idle is-waiting"><p class="quiet">${store.cut || "Waiting for the run …"}</p></${Root}>`;
  const whole = part === "dashboard", has = (name) => whole || part === name;
  const said = has("controls") || answer || store.cut || store.stale;
  if (part === "runs") return html`<${Root} class=${`tnb is-idle ${store.cut ? "is-cut" : ""}`} aria-label="Training runs">${(store.cut || store.stale) && html`<${Message} ...${{ store, view }} />`}<${Several} ...${{ store, view }} /></${Root}>`;
  const off = !view.may_steer || Boolean(view.commands.tune?.why_not) || Boolean(store.cut), same = { store, view, press, off };
  return html`<${Root} class=${`tnb is-${colour(view)} ${store.cut ? "is-cut" : ""}`} aria-label=${`Training run ${view.run.name}`}>
    ${alone && html`<h1 class="unseen">Training run</h1>`}${whole && html`<${Head} ...${same} />`}
    ${has("controls") && html`<${Controls} ...${same} open=${open} setOpen=${setOpen} />`}
    ${said && html`<${Message} ...${same} answer=${answer} />`}${has("controls") && html`<${GoOn} ...${same} /><${Waiting} ...${same} />`}
    ${!PANES[part] && html`<div class=${`tnb-main ${whole ? "" : "single"}`}>
      ${has("plots") && html`<${Chart} store=${store} onStep=${whole && view.may_steer && view.run.can_rewind ? (step) => setOpen({ step }) : undefined} />`}
      ${has("controls") && html`<${Tunables} ...${same} />`}</div>`}
    ${whole && html`<${Tabs} ...${same} />`}${PANES[part]?.(same)}</${Root}>`;
}

export function mount(el, link, part) {
  const store = new Store(link);
  render(h(Panel, { store, part }), el);
  return () => {
    render(null, el);
    link.close();
  };
}

// In a notebook: also what it needs around the panel.
function mountIn(el, model) {
  const link = Object.assign(widgetLink(model), { drawn: () => hidePicture(el) });
  const ends = [mount(el, link, model.get("part")), keepKeys(el), keepFocus(el)];
  return () => ends.forEach((end) => end());
}

export const page = (el) => mount(el, pageLink());
export default { initialize: ({ model }) => showAgain(model), render: ({ model, el }) => mountIn(el, model) };
