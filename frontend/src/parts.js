// Head, tunables, hooks and journal.
import { html } from "htm/preact";
import { useRef, useState } from "preact/hooks";
import { capital, clock, count, entryText, isAveraged, newest, phase, plain, read, short, standing } from "./words.js";

const LABELS = { samples_per_second: "Samples/s" };

// Label, value and unit of the numbers of the head.
export function cellsOf({ run, place, memory, numbers = {} }) {
  const { seconds, fraction } = place, left = seconds && fraction ? seconds * (1 / fraction - 1) : undefined;
  const cells = [["Elapsed", clock(seconds), ""], ["Left", clock(left), ""]];
  if (memory?.used !== undefined) cells.push([memory.label, (memory.used / 2 ** 30).toFixed(1), memory.total ? `of ${(memory.total / 2 ** 30).toFixed(1)} GB` : "GB"]);
  for (const [name, { value, of, best }] of Object.entries(numbers)) {
    if (name.startsWith("train/") && !name.endsWith("/loss")) continue;
    cells.push([LABELS[name] ?? name, short(value), of > 1 ? `avg ${of}` : isAveraged(run, name) ? "average" : best ? `best ${short(best.value)}` : ""]);
  }
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
    <div class="numbers">${cellsOf(view).map(([label, value, unit]) => html`<div key=${label} title=${`${label} ${value} ${unit}`}>
      <div class="label">${label}</div><div class=${`value ${value === "–" ? "none" : ""}`}><span>${value}</span> <small>${unit}</small></div></div>`)}</div></header>`;
}

// Those that a person changes: not the switch and the order of each hook, which its row has.
export const tunablesOf = ({ tunables, values }) => Object.entries(tunables).sort(([, one], [, other]) => one.at - other.at)
  .filter(([name, { owner }]) => !owner || ![`${owner}.enabled`, `${owner}.order`].includes(name))
  .map(([name, rule]) => ({ name, ...rule, ...values[name] }));

const inWords = (value, rule) => (value === undefined || value === null ? rule.none || "none" : plain(value));

function hintOf(rule, refused) {
  if (refused || rule.refused) return refused || rule.refused;
  if (rule.waits) return `${inWords(rule.value, rule)} → ${inWords(rule.pending, rule)} at the next step`;
  if (rule.moves) return `in force ${short(rule.value)} (schedule)`;
  return rule.doc ?? "";
}

function Row({ store, rule, off }) {
  const [refused, setRefused] = useState(""), [draft, setDraft] = useState(null), { name } = rule;
  const label = name.slice(rule.owner ? rule.owner.length + 1 : 0), hint = `hint-${name}`;
  async function choose(value) {
    let found;
    try { found = await store.command("tune", { [name]: value() }); } catch (error) { found = { status: "refused", reason: error.message }; }
    const taken = ["applied", "void"].includes(found.status);
    setRefused(taken ? "" : found.reason || found.status);
    if (taken) setDraft(null);
  }
  const given = { id: `tunable-${name}`, disabled: off, "aria-describedby": hint };
  const shown = rule.waits ? rule.pending : rule.moves ? undefined : rule.value;
  const field = rule.choices
    ? html`<select ...${given} value=${String(rule.choices.findIndex((each) => each === (rule.value ?? null)))} onChange=${(event) => choose(() => rule.choices[Number(event.target.value)])}>
        ${rule.choices.map((each, at) => html`<option value=${String(at)}>${inWords(each, rule)}</option>`)}</select>`
    : rule.kind === "bool"
      ? html`<input ...${given} type="checkbox" role="switch" checked=${shown === true} onChange=${(event) => choose(() => event.target.checked)} />`
      : html`<input ...${given} autocomplete="off" spellcheck=${false} enterkeyhint="done" maxlength="200" class=${draft === null ? "" : "draft"}
          placeholder=${rule.moves ? `${short(rule.value)} (schedule)` : inWords(rule.value, rule)}
          value=${draft ?? (shown === undefined || shown === null ? "" : plain(shown))} onInput=${(event) => setDraft(event.target.value)}
          onKeyDown=${(event) => { if (event.key === "Escape") { setDraft(null); setRefused(""); } }}
          onChange=${({ target: { value } }) => { if (value !== "" || rule.kind === "str") choose(() => read(value, rule)); else setDraft(null); }} />`;
  const words = hintOf(rule, refused);
  return html`<div class=${`row ${refused || rule.refused ? "refused" : rule.waits ? "pending" : ""}`} data-name=${name}>
    <label for=${given.id} title=${rule.doc}>${rule.owner && html`<span class="quiet of">${rule.owner}</span> `}${label}</label>${field}<div class="hint" id=${hint} title=${words}>${words}</div></div>`;
}

export function Tunables({ store, view, off }) {
  return html`<section class="tunables" aria-label="Tunables">${tunablesOf(view).map((rule) => html`<${Row} key=${rule.name} ...${{ store, rule, off }} />`)}</section>`;
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
