// Buttons, the list of states to go back to, what has just been said, and commands that wait for a person.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { failedOf } from "./hooks.js";
import { broken, brokenBy, capital, count, epochAfter, message, short, standing } from "./words.js";

const LOOKS_ONLY = "This link may only look";

// The buttons of all commands in their order; of those that share the first place the one that acts.
export function buttonsOf({ commands, state }) {
  const order = ([, one], [, other]) => one.at - other.at;
  const every = Object.entries(commands).sort(order).flatMap(([name, spec]) =>
    Object.entries(spec.buttons ?? {}).sort(order).map(([label, button]) => ({ ...button, name, label, values: Object.fromEntries(button.values ?? []) })));
  const mains = every.filter(({ place }) => place === "main");
  const main = mains.find(({ states }) => states?.includes(state.name)) ?? mains.at(-1);
  return every.filter((each) => each.place !== "main" || each === main).map((each) => ({ ...each, main: each === main }));
}

// What a person fills in before a button is sent: what its command needs and it does not give.
const fieldsOf = ({ commands }, { name, values, asks = [] }) =>
  Object.entries(commands[name].values ?? {}).filter(([key, { needed }]) => (needed || asks.includes(key)) && !(key in values)).sort(([, one], [, other]) => one.at - other.at);

// What an evaluation has measured since there were these numbers, in words; "" while it goes on.
function measured({ run, numbers = {} }, before = {}) {
  const found = Object.entries(numbers).filter(([name, { count: of }]) => run.loaders?.includes(name.split("/")[0]) && of > (before[name]?.count ?? 0));
  return found.length ? `Evaluated at step ${count(found[0][1].step)}: ${found.map(([name, { value }]) => `${name} ${short(value)}`).join(" · ")}` : "";
}

// What is said after a click, until something else is; `press` sends a command. `during`: how the run stands; after that it is out of date.
// `outcome`: what is said as soon as the view has it.
export function useAnswer(store) {
  const [answer, setAnswer] = useState(null), timer = useRef(0);
  const say = (words, seconds, { wrong = false, during, outcome } = {}) => {
    clearTimeout(timer.current);
    setAnswer({ words, wrong, during, outcome });
    timer.current = setTimeout(() => setAnswer(null), 1000 * seconds);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const how = store.view ? standing(store.view) : "", stood = useRef(how);
  useEffect(() => {  // it has ended, or failed: that is said, and not what was done before
    if (stood.current !== how && !["running", "paused"].includes(how)) setAnswer((each) => (each?.wrong ? each : null));
    stood.current = how;
  }, [how]);
  const press = async (name, values = {}, label = name, given = {}) => {  // `label`: of a button that gives values of its own; `given`: those that a person has
    const named = label === name ? Object.entries(values).map(([key, value]) => (typeof value === "string" ? value : `${key} ${value}`)) : Object.values(given);
    const said = [label, ...named].join(" ");
    const during = standing(store.view), before = store.view.numbers;
    say(`${said}: asked for${during === "running" ? "; it takes effect at the next step" : ""}.`, 60, { during });
    const found = await store.command(name, values), applied = found.status === "applied";
    const where = applied && found.where ? ` ${found.where.replace(/(?<=step )\d{4,}/g, (digits) => count(Number(digits)))}` : "";
    const outcome = name === "validate" ? (view) => measured(view, before) : undefined;
    say(`${said}: ${found.status}${where}${found.reason ? `: ${found.reason}` : ""}`, outcome ? 20 : applied ? Math.max(4, where.length / 8) : 30, applied ? { outcome } : found.status === "void" ? { during } : { wrong: true });
    return found;
  };
  return [answer, press];
}

function ControlButton({ view, button, press, label = button.label, sure = "" }) {
  const last = useRef(0), why = view.may_steer ? button.why_not : LOOKS_ONLY;
  const hurt = button.name === "resume" && view.run.can_rewind ? brokenBy(view) : "";  // it would go on with what is broken
  const click = () => {  // the second half of a double click would mean something else, as Resume or Really stop; two of Step are two
    if (button.place !== "steps" && performance.now() - last.current < 250) return;
    last.current = performance.now();
    press();
  };
  // one that becomes disabled keeps the focus: keys would go elsewhere
  return html`<button type="button" name=${button.name} class=${`${button.main && !hurt ? "main" : ""} ${button.style ?? ""}`} data-sure=${sure || undefined}
    title=${why || (hurt ? `${capital(hurt)}: rewind to a state before it first` : button.doc)} aria-disabled=${Boolean(why)} onClick=${why ? undefined : click}>${label}</button>`;
}

export function Controls({ store, view, press, open, setOpen }) {
  const [sure, setSure] = useState(false), [filled, setFilled] = useState(""), timer = useRef(0), bar = useRef();
  useEffect(() => () => clearTimeout(timer.current), []);
  const stop = (button) => {  // a thumb slips easily
    if (sure) press(button.name, button.values);
    clearTimeout(timer.current);
    setSure(!sure);
    if (!sure) timer.current = setTimeout(() => setSure(false), 4000);
  };
  const close = (name) => {  // the focus goes back to where it came from, and not to the page
    bar.current.querySelector(`button[name=${name}]`)?.focus();
    setOpen(false);
    setFilled("");
  };
  const buttons = buttonsOf(view).filter(({ place }) => !["go_on", "tab"].includes(place)), form = buttons.find(({ name, label }) => `${name} ${label}` === filled);
  return html`<section class="bar" aria-label="Controls" ref=${bar}>${buttons.map((button) => {
    const stops = button.style === "stop", key = `${button.name} ${button.label}`;
    const act = button.name === "rewind" ? () => setOpen(!open) : stops ? () => stop(button) : fieldsOf(view, button).length ? () => setFilled(filled === key ? "" : key) : () => press(button.name, button.values, Object.keys(button.values).length ? button.label : button.main ? button.label.toLowerCase() : undefined);
    return html`<${ControlButton} key=${button.main ? "main" : key} ...${{ view, button, press: act }}
      label=${stops && sure ? "Really stop?" : button.label} sure=${stops && sure ? "asked" : ""} />`;
  })}</section>
  <p class="obstacle" role="status">${view.state.obstacle && `Controls wait for the cell: ${view.state.obstacle}`}</p>
  ${open && html`<${Chooser} ...${{ store, view, press }} close=${() => close("rewind")} near=${open.step} />`}
  ${form && html`<${Form} key=${filled} ...${{ view, press }} button=${form} close=${() => close(form.name)} />`}`;
}

// A button with the values that a person fills in; `close`: it was opened by a click.
function Form({ view, button, press, close }) {
  const fields = fieldsOf(view, button), form = useRef();
  useEffect(() => {
    if (close) form.current.querySelector("input").focus();
  }, []);
  const valueOf = (key, { kind }) => {
    const { checked, value } = form.current.querySelector(`input[name=${key}]`);
    const number = ["int", "float"].includes(kind) && value.trim() ? Number(value) : NaN;
    return kind === "bool" ? checked : Number.isNaN(number) ? value : number;  // other text is refused in words
  };
  const send = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(fields.map(([key, rule]) => [key, valueOf(key, rule)]));
    press(button.name, { ...button.values, ...given }, button.label, given);
    close?.();
  };
  return html`<form class="bar more" aria-label=${button.label} title=${button.doc} ref=${form} onSubmit=${send} onKeyDown=${(event) => event.key === "Escape" && close?.()}>
    ${fields.map(([key, { kind, doc, default: usual }]) => html`<label key=${key}>${capital(doc || key)} ${kind === "bool"
      ? html`<input type="checkbox" name=${key} defaultChecked=${usual} />` : html`<input name=${key} size=${kind === "str" ? 24 : 4} defaultValue=${usual ?? ""} />`}</label>`)}
    <button name=${button.name}>${button.label}</button>${close && html`<button type="button" onClick=${close}>Cancel</button>`}</form>`;
}

// A state to go back to, in words; its loss may be that of an evaluation some steps before it.
export const pointWords = ({ step, epoch, name, value, measured, best }) =>
  [`step ${count(step)}`, epoch !== undefined && `epoch ${epochAfter(epoch)}`, name && `${name} ${short(value)}${measured === step ? "" : ` at ${count(measured)}`}`, best && "best of these"].filter(Boolean).join(" · ");

const NEWEST = 20, MOST = 60;  // states in the list

// Of very many states the newest, the best, the chosen one, and others at even distances.
export function fewOf(points, step) {
  if (points.length <= MOST) return points;
  const every = Math.ceil((points.length - NEWEST) / (MOST - NEWEST));
  return points.filter((each, at) => at < NEWEST || at % every === 0 || each.best || each.step === step);
}

// The state that is proposed, of those with the newest first: the last before a step that was clicked, or before the present one;
// in a run that broke, the best before it broke, for the weights right before it may be on their way already.
export function usualOf(points, view, near) {
  const bad = near === undefined ? broken(view)?.step ?? Infinity : Infinity, good = points.filter(({ step }) => (near === undefined ? step < Math.min(bad, view.place.step) : step <= near));
  return (bad < Infinity && good.find(({ best }) => best)) || good[0] || points.at(near === undefined && bad < Infinity ? -1 : 0);
}

// The states to go back to; they are read while this is open. `near`: the step that was clicked.
function Chooser({ store, view, press, close, near }) {
  const list = useRef(), [chosen, setChosen] = useState(null);
  useEffect(() => {
    list.current.focus();
    return store.open("rewind");
  }, [store]);
  const points = (view.rewind ?? []).toReversed(), step = chosen ?? usualOf(points, view, near)?.step, listed = fewOf(points, step);
  return html`<section class="bar" aria-label="Rewind" onKeyDown=${(event) => event.key === "Escape" && close()}>
    <label>Go back to <select aria-label="Go back to" ref=${list} value=${step === undefined ? "" : String(step)} onChange=${(event) => setChosen(Number(event.target.value))}>
      ${listed.map((each) => html`<option key=${each.step} value=${String(each.step)}>${pointWords(each)}</option>`)}</select></label>
    ${listed.length < points.length && html`<span class="quiet">${count(listed.length)} of ${count(points.length)}; a click on a curve finds the others</span>`}
    <button type="button" disabled=${step === undefined} onClick=${() => { close(); press("rewind", { step }); }}>Rewind here</button>
    <button type="button" onClick=${close}>Cancel</button></section>`;
}

export function Message({ store, view, answer }) {
  const silent = store.stale ? "This page is older than the run's package: reload it." : store.cut && `${store.cut} What stands here is old.`;
  const old = answer?.during && answer.during !== standing(view);  // how the run stands says more
  const words = silent || (!old && (answer?.outcome?.(view) || answer?.words)) || message(view) + (view.may_steer ? "" : ` ${LOOKS_ONLY}.`);
  return html`<section class="words" aria-live="polite"><p class=${`message ${silent || answer?.wrong ? "wrong" : ""}`}>${words}</p>
    ${view.state.go_on && html`<p class="go-on">To go on: <code>${view.state.go_on}</code></p>`}</section>`;
}

// How a run goes on after its end or a failure; also without the hook that raised.
export function GoOn({ view, press, off }) {
  if (!view.may_steer) return null;
  const buttons = buttonsOf(view).filter(({ place, why_not: why }) => place === "go_on" && !why);
  const failed = off ? [] : failedOf(view).filter((name) => view.hooks[name].enabled);
  return html`${buttons.map((button) => html`<${Form} key=${`${button.name} ${button.label}`} ...${{ view, button, press }} />`)}
    ${failed.length > 0 && html`<div class="bar more">${failed.map((name) => html`<button type="button" key=${name} onClick=${() => press("tune", { [`${name}.enabled`]: false })}>Switch ${name} off</button>`)}</div>`}`;
}

export function Waiting({ view, press }) {
  const rows = Object.entries(view.waiting ?? {});
  return rows.length > 0 && html`<section class="waiting" aria-label="Waiting for approval">${rows.map(([id, { name, values, by, source, reason }]) => html`
    <div class="bar" key=${id}><span>${source}${by && html` (${by})`} asks for ${[name, values.map((each) => each.join(" = ")).join(", ")].filter(Boolean).join(" ")}${reason ? `: ${reason}` : ""}</span>
      ${["approve", "decline"].map((each) => html`<button type="button" disabled=${!view.may_steer} onClick=${() => press(each, { id })}>${each === "approve" ? "Approve" : "Decline"}</button>`)}</div>`)}</section>`;
}
