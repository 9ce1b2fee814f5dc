// What is wrong with the run, the newest first, and what to do.
import { html } from "htm/preact";
import { count, newestOf } from "./words.js";

// What stands between backticks is code.
const sentence = (text = "") => text.split("`").map((each, at) => (at % 2 ? html`<code>${each}</code>` : each));

export function Alerts({ view }) {
  const rows = newestOf(view.alerts);
  if (!rows.length) return html`<p class="quiet">No alerts. Each one appears here with its step and with what to do.</p>`;
  return html`<ol>${rows.map(({ number, title, step, seen, advice, ended }) => html`<li key=${number} class=${ended === undefined ? "" : "over"}>
    <b class=${ended === undefined ? "going" : ""}>${title}</b> <span class="quiet">step ${count(step)}${ended === undefined ? " · goes on" : ` · ended at step ${count(ended)}`}</span>
    <div>${sentence(seen)}</div>${advice && html`<div class="advice">${sentence(advice)}</div>`}</li>`)}</ol>`;
}
