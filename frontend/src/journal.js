// What was done by hand, the newest first; a note; and the script that does the same again.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { Copy } from "./copy.js";
import { count, epochOf, newestOf } from "./words.js";

const FEW = 12;  // entries that are drawn at first

export function Journal({ store, view, press, off }) {
  const [text, setText] = useState(""), [all, setAll] = useState(false), [promise, setPromise] = useState("");
  const rows = newestOf(view.entries ?? view.journal?.entries), earlier = (view.journal?.count ?? 0) - rows.length;
  const add = async (event) => {
    event.preventDefault();
    const words = text.trim();
    if (words && (await press("note", { text: words })).status === "applied") setText("");
  };
  const script = async () => {
    const found = await store.request({ ask: "script" });
    if (found.status !== "applied") throw new Error(found.reason || found.status);
    setPromise(found.promise);
    return found.text;
  };
  return html`<form class="bar" onSubmit=${add}><input aria-label="Note for the journal" maxlength="500" placeholder="Note for the journal" autocomplete="off" disabled=${off} value=${text}
      onInput=${(event) => setText(event.target.value)} /><button disabled=${off}>Add note</button></form>
    <ol>${rows.slice(0, all ? rows.length : FEW).map((each) => html`<li key=${each.number} class=${each.undone ? "undone" : ""}><span class="number">${each.number}</span>
      <span class="quiet when" title=${each.time}>step ${count(each.step)} · epoch ${epochOf(each)}</span> <span class="text">${each.kind === "note" ? `“${each.change ?? ""}”` : html`<b>${each.what}</b> ${each.change ?? ""}`}
      <span class="quiet"> ${[each.source, each.by].filter(Boolean).join(", ")}${each.reason ? `: ${each.reason}` : ""}${each.undone ? " · undone by a rewind" : ""}</span></span></li>`)}</ol>
    ${rows.length === 0 && html`<p class="quiet">No manual changes yet. Each change is noted here with its step, and a script can repeat it.</p>`}
    <div class="bar">${rows.length > FEW && html`<button type="button" onClick=${() => setAll(!all)}>${all ? `Show the last ${FEW}` : `Show all ${count(rows.length)}`}</button>`}
      ${rows.length > 0 && html`<${Copy} label="Copy as script" text=${script} />`}</div>
    <p class="quiet">${all && earlier > 0 ? `${count(earlier)} earlier entries are in the script. ` : ""}${promise}</p>`;
}
