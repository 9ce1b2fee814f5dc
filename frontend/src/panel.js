// The panel of a run, on a page or in a notebook.
import { h, render } from "preact";
import { html } from "htm/preact";
import { useEffect, useReducer, useState } from "preact/hooks";
import { Chart } from "./chart.js";
import { Controls, Message, Waiting, useAnswer } from "./controls.js";
import { pageLink, widgetLink } from "./link.js";
import { Head } from "./parts.js";
import { Store } from "./store.js";
import { Tabs } from "./tabs.js";
import { Tunables } from "./tunables.js";
import { capital, colour, standing } from "./words.js";

// Keys that the page itself needs; all others stay in the panel, where a notebook would take them for its shortcuts.
const passesOn = (event) => event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape" || (event.shiftKey && event.key === "Enter");

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

export function Panel({ store }) {
  const [, again] = useReducer((number) => number + 1, 0), [open, setOpen] = useState(false), [answer, press] = useAnswer(store);
  useEffect(() => {
    let frame = 0;
    const stop = store.watch(() => { frame ||= requestAnimationFrame(() => { frame = 0; again(); }); });
    again();  // of what came before this was called
    return () => { stop(); cancelAnimationFrame(frame); };
  }, [store]);
  const { view } = store;
  useEffect(() => { if (view) document.title = store.cut ? "No connection" : `${capital(standing(view))} · ${view.run.name}`; });
  if (store.locked) return html`<${Locked} link=${store.link} why=${store.cut} />`;
  if (!view) return html`<main class="tnb is-idle"><p class="quiet">${store.cut || "Waiting for the run …"}</p></main>`;
  const off = !view.may_steer || Boolean(view.commands.tune?.why_not) || Boolean(store.cut), same = { store, view, press, off };
  return html`<main class=${`tnb is-${colour(view)} ${store.cut ? "is-cut" : ""}`} aria-label=${`Training run ${view.run.name}`} onKeyDown=${(event) => passesOn(event) || event.stopPropagation()}>
    <h1 class="unseen">Training run</h1><${Head} ...${same} /><${Controls} ...${same} open=${open} setOpen=${setOpen} /><${Message} ...${same} answer=${answer} /><${Waiting} ...${same} />
    <div class="tnb-main"><${Chart} store=${store} onStep=${view.may_steer && view.run.can_rewind ? (step) => setOpen({ step }) : undefined} /><${Tunables} ...${same} /></div>
    <${Tabs} ...${same} /></main>`;
}

export function mount(el, link) {
  const store = new Store(link);
  render(h(Panel, { store }), el);
  return () => {
    render(null, el);
    link.close();
  };
}

export const page = (el) => mount(el, pageLink());
export default { render: ({ model, el }) => mount(el, widgetLink(model)) };
