// What a person may change while the run goes on: a slider and a box, a switch or a list for each, in groups that fold.
import { html } from "htm/preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { plain, read, short } from "./words.js";

const FEW = 12, MANY = 6, ROOM = 20;  // rows: without a search field; of a hook that starts open; of all that do

// Those that a person changes: not the switch and the order of each hook, which its row in the table has.
export const tunablesOf = ({ tunables, values }) => Object.entries(tunables).sort(([, one], [, other]) => one.at - other.at)
  .filter(([name, { owner }]) => !owner || ![`${owner}.enabled`, `${owner}.order`].includes(name))
  .map(([name, rule]) => ({ name, ...rule, ...values[name] }));

// Title to rows: the optimizer, the loop, and each hook.
export function groupsOf(view) {
  const found = new Map();
  for (const rule of tunablesOf(view)) found.set(rule.group, [...(found.get(rule.group) ?? []), rule]);
  let room = ROOM;
  return [...found].map(([title, rows]) => {
    const { owner } = rows[0], few = Boolean(view.points[owner]?.own) || rows.length <= MANY, open = !owner || (few && rows.length <= room);
    if (open) room -= rows.length;
    return { title, rows, open };
  });
}

// Where the slider of a number begins and ends; the box takes values beyond both.
export function rangeOf({ kind, min, max, scale, value = 0 }) {
  if (scale === "log") {
    const power = value > 0 ? Math.floor(Math.log10(value)) : -4;
    return { low: min || 10 ** (power - 3), high: max ?? 10 ** (power + 2), log: true };
  }
  return { low: min ?? Math.min(0, 2 * value), high: max ?? Math.max(kind === "int" ? 16 : 5, 4 * value), log: false };
}

const STOPS = 200;
export const stopOf = ({ low, high, log }, value) =>
  Math.round(STOPS * Math.min(1, Math.max(0, log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low))));

export function valueAt({ low, high, log }, stop, kind) {
  const value = log ? low * (high / low) ** (stop / STOPS) : low + (high - low) * (stop / STOPS);
  return kind === "int" ? Math.round(value) : Number(value.toPrecision(3));
}

// The range as it was, unless the value in force has left it, as that of a warm-up does.
export const keptRange = (range, rule) => (range && !(typeof rule.value === "number" && rule.value !== 0 && (rule.value > range.high || rule.value < range.low)) ? range : rangeOf(rule));

// Whether a number is ten times beyond the slider; one that is in force already is not.
export function isFar(value, rule, { low, high, log }) {
  if (typeof value !== "number" || value === rule.value) return false;
  return log ? value > 10 * high || (value > 0 && value < low / 10) : Math.abs(value) > 10 * Math.max(Math.abs(low), Math.abs(high));
}

const inWords = (value, rule) => (value === undefined || value === null ? rule.none || "none" : plain(value));
const isNumber = ({ kind }) => kind === "float" || kind === "int";

function hintOf(rule, refused) {
  if (refused) return refused;
  if (rule.waits) return `${inWords(rule.value, rule)} → ${inWords(rule.pending, rule)} at the next step`;
  if (rule.each) return `groups ${rule.each.map(short).join(" · ")}`;
  if (rule.moves) return `in force ${short(rule.value)} (schedule)`;
  return rule.doc ?? "";
}

function Slider({ rule, range, off, draft, setDraft, choose, label }) {
  const shown = draft ?? rule.pending ?? rule.value;
  const at = typeof shown === "number" ? stopOf(range, shown) : 0;
  return html`<input type="range" min="0" max=${STOPS} step="1" disabled=${off} value=${at} aria-label=${`${label}, slider`} aria-valuetext=${inWords(shown, rule)}
    onInput=${(event) => setDraft(valueAt(range, Number(event.target.value), rule.kind))}
    onChange=${(event) => choose(() => valueAt(range, Number(event.target.value), rule.kind))} />`;
}

// A reference for a box: a new value leaves it selected where it was selected, so that what is typed next takes its place.
export function useSelected() {
  const box = useRef(), { current } = box;
  const all = current?.value && current.matches(":focus") && current.selectionEnd - current.selectionStart === current.value.length;
  useLayoutEffect(() => { if (all) box.current?.select(); });
  return box;
}

// What a switch was set to, until there is an answer: what is drawn meanwhile does not turn it back. `send` gives a promise.
export function useAsked(send) {
  const [asked, setAsked] = useState(null);
  const ask = async (value) => {
    setAsked(value);
    try { await send(value); } finally { setAsked((now) => (now === value ? null : now)); }  // not what was asked for since
  };
  return [asked, ask];
}

function Row({ store, rule, off }) {
  const [refused, setRefused] = useState(""), [draft, setDraft] = useState(null), [slid, setSlid] = useState(null), [question, setQuestion] = useState(null);
  const first = useRef(), stood = useRef(), box = useSelected(), { name } = rule, label = rule.label ?? name.slice(rule.owner ? rule.owner.length + 1 : 0), hint = `${store.prefix}hint-${name}`;
  const within = rule.owner ?? (rule.label && name.includes(".") ? rule.group : "");  // of several optimizers
  const range = isNumber(rule) ? (first.current = keptRange(first.current, rule)) : null, inForce = rule.moves ? undefined : rule.value;
  const asked = question?.inForce === inForce ? question?.value ?? null : null;  // else it was changed meanwhile, as by a rewind
  const clear = () => { setDraft(null); setRefused(""); setQuestion(null); };
  useLayoutEffect(() => { if (refused) clear(); }, [inForce]);  // another value is in force: what was refused is old
  async function choose(value, text = null, sure = true) {  // text: what stands in the box
    let found;
    setQuestion(null);  // it was about another value
    try {
      const wanted = value();
      if (!sure && range && isFar(wanted, rule, range)) return setQuestion({ value: wanted, inForce });
      found = await store.command("tune", { [name]: wanted });
    } catch (error) { found = { status: "refused", reason: error.message }; }
    const taken = ["applied", "void"].includes(found.status);
    setRefused(taken ? "" : found.reason || found.status);
    setSlid(null);
    if (taken) setDraft((now) => (now === text ? null : now));  // what was typed since stays
  }
  const answer = (sure) => {
    setQuestion(null);
    if (sure) choose(() => asked, draft);
    else clear();
  };
  const given = { id: `${store.prefix}tunable-${name}`, disabled: off, "aria-describedby": hint };
  const shown = slid ?? (rule.waits ? rule.pending : rule.moves ? undefined : rule.value);
  const stands = shown === undefined || shown === null ? "" : plain(shown);
  const field = rule.choices
    ? html`<select ...${given} value=${String(slid ?? rule.choices.indexOf((rule.waits ? rule.pending : rule.value) ?? null))} onChange=${({ target: { value } }) => { setSlid(Number(value)); choose(() => rule.choices[value]); }}>
        ${rule.choices.map((each, at) => html`<option value=${String(at)}>${inWords(each, rule)}</option>`)}</select>`
    : rule.kind === "bool"
      ? html`<input ...${given} type="checkbox" role="switch" checked=${shown === true} onChange=${({ target: { checked } }) => { setSlid(checked); choose(() => checked); }} />`
      : html`<input ref=${box} ...${given} autocomplete="off" spellcheck=${false} enterkeyhint="done" maxlength="200" title=${range ? `${stands && `${stands}: `}a number, or *0.5 or /10 of the value in force` : undefined} class=${draft === null ? "" : "draft"}
          placeholder=${rule.moves ? `${short(rule.value)} (schedule)` : inWords(rule.value, rule)}
          value=${draft ?? stands} onInput=${(event) => { if (draft === null) stood.current = stands; setDraft(event.target.value); }}
          onBlur=${(event) => draft !== null && event.target.value === stood.current && setDraft(null)}
          onKeyDown=${(event) => event.key === "Escape" && clear()}
          onChange=${({ target: { value } }) => { if (value !== "" || rule.kind === "str") choose(() => read(value, rule), value, false); else clear(); }} />`;
  const words = hintOf(rule, refused), usual = range ? ` The slider: ${short(range.low)} to ${short(range.high)}. The box also takes *0.5 or /10 of the value in force.` : "";
  return html`<div class=${`row ${range ? "slides" : ""} ${refused ? "refused" : rule.waits ? "pending" : ""}`} data-name=${name}>
    <label for=${given.id} title=${`${rule.doc ?? name}.${usual}`}>${within && html`<span class="unseen">${within} </span>`}${label}</label>
    ${range && html`<${Slider} ...${{ rule, range, off, label: within ? `${within} ${label}` : label, draft: slid, setDraft: setSlid, choose: (value) => { setDraft(null); choose(value); } }} />`}${field}
    ${asked === null ? html`<div class="hint" id=${hint} title=${words}>${words}</div>`
      : html`<div class="hint asks" id=${hint} role="alert">${plain(asked)} is far beyond the usual ${short(range.low)} to ${short(range.high)}. <button type="button" onClick=${() => answer(true)}>Set ${plain(asked)}</button> <button type="button" onClick=${() => answer(false)}>Keep ${inWords(rule.value, rule)}</button></div>`}</div>`;
}

export function Tunables({ store, view, off }) {
  const [turned, setTurned] = useState({}), [search, setSearch] = useState(""), groups = groupsOf(view), { undo } = view.journal ?? {};
  const many = groups.reduce((sum, { rows }) => sum + rows.length, 0) > FEW, wanted = search.trim().toLowerCase();
  const fits = ({ name }) => name.toLowerCase().includes(wanted);
  const back = () => store.command("tune", { [undo.name]: undo.old ?? null }, "undo");
  return html`<section class="tunables" aria-label="Tunables"><div class="bar">
      ${many && html`<input type="search" aria-label="Search a tunable" placeholder="Search" value=${search} onInput=${(event) => setSearch(event.target.value)} />`}
      <span class="space"></span><button type="button" aria-disabled=${off || !undo} title=${undo ? `Undo ${undo.what}` : "No value was changed by hand"} onClick=${off || !undo ? undefined : back}>Undo</button></div>
    ${groups.map(({ title, rows, open }) => {
      const found = rows.filter(fits), waits = rows.some((each) => each.waits);
      const shown = wanted ? found.length > 0 : turned[title] ?? (open || waits);
      return (!wanted || found.length > 0) && html`<div class="group" key=${title}><button type="button" class="fold" aria-expanded=${shown} onClick=${() => setTurned({ ...turned, [title]: !shown })}>${title}${shown ? "" : html` <span class="quiet">${rows.length}</span>`}</button>
        ${shown && found.map((rule) => html`<${Row} key=${rule.name} ...${{ store, rule, off }} />`)}</div>`;
    })}</section>`;
}
