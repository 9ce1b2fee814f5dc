// What a run does not measure yet, and what begins it: buttons of commands that have a place here, each where it would act.
import { html } from "htm/preact";
import { buttonsOf } from "./controls.js";

export const offersOf = (view) => (view.may_steer ? buttonsOf(view).filter(({ place, why_not: why }) => place === "tab" && !why) : []);

const TABS = { layers: "layers", samples: "data" };  // what is recorded to the tab that shows it

export function More({ view, press, show }) {
  const begin = async (name, values) => {
    if ((await press(name, values)).status === "applied" && TABS[values.what]) show(TABS[values.what]);
  };
  const offers = offersOf(view);
  if (!offers.length) return html`<p class="quiet">Nothing more.</p>`;
  return html`<p class="quiet">Not recorded in this run. It begins at the next step, and is written into the journal.</p>
    <ul>${offers.map(({ name, label, doc, values }) => html`<li key=${`${name} ${label}`}><button type="button" name=${name} onClick=${() => begin(name, values)}>${label}</button> <span>${doc}</span></li>`)}</ul>`;
}
