// Find a learning rate, take one: by a suggestion, or by a click on the curve; and the rates to come.
import { html } from "htm/preact";
import { useMemo, useState } from "preact/hooks";
import { Figure, LAYOUT, PLAIN } from "./figure.js";
import { column } from "./store.js";
import { capital, count, plain } from "./words.js";

const INKS = { valley: "#7d50e6", steepest: "#dd7023", slide: "#1a9e96", minimum: "#b0578d" }, OTHER = "#808080";
const two = (rate) => plain(Number(rate.toPrecision(2)));

// Rates, losses and smoothed losses where all are numbers.
export function finite({ rates, losses, smoothed }) {
  const good = rates.map((_, at) => at).filter((at) => [rates, losses, smoothed].every((each) => Number.isFinite(each[at])));
  return [rates, losses, smoothed].map((each) => good.map((at) => each[at]));
}

export function searchTraces(search) {
  const [x, losses, smoothed] = finite(search), line = (y, more) => ({ type: "scatter", mode: "lines", x, y, hovertemplate: "%{y:.5g}<extra></extra>", ...more });
  return [line(losses, { name: "loss", line: { color: "#3f83e8", width: 1 }, opacity: 0.35, hoverinfo: "skip", hovertemplate: undefined }), line(smoothed, { name: "smoothed", line: { color: "#3f83e8", width: 2 } })];
}

// The losses that matter: a search ends where they run away.
export function lossRange([, losses, smoothed]) {
  if (!losses.length) return undefined;
  const ordered = losses.toSorted((one, other) => one - other);
  const floor = Math.min(...smoothed, ordered[Math.floor(0.03 * ordered.length)]), ceiling = Math.max(...smoothed.slice(0, Math.max(3, Math.floor(smoothed.length / 2))));
  const span = 1.25 * (ceiling - floor || Math.abs(floor) || 1);
  return [floor - 0.06 * span, floor + 0.94 * span];
}

// Each suggestion has a line, and its name in a row of its own.
export function searchLayout(search, chosen) {
  const curve = finite(search), [rates] = curve, marks = Object.entries(search.suggestions ?? {}).map(([name, { rate }]) => [name, rate, INKS[name] ?? OTHER]);
  if (chosen) marks.push(["your click", chosen, OTHER]);
  const there = marks.filter(([, rate]) => rate >= rates[0] && rate <= rates.at(-1));
  return { ...LAYOUT, height: 260, hoverdistance: -1, xaxis: { ...PLAIN, type: "log", title: { text: "learning rate" }, showgrid: false }, yaxis: { ...PLAIN, range: lossRange(curve), nticks: 5 },
    shapes: there.map(([name, rate, color]) => ({ type: "line", x0: rate, x1: rate, yref: "paper", y0: 0, y1: 1, line: { color, width: 1.5, dash: name === "valley" ? "solid" : "dot" } })),
    annotations: there.map(([name, rate], at) => {
      const right = rate > Math.sqrt(rates[0] * rates.at(-1));  // the name is on the side that has room
      return { text: `${name} ${two(rate)}`, x: Math.log10(rate), y: 1 - 0.08 * at, xref: "x", yref: "paper", xanchor: right ? "right" : "left", yanchor: "top", showarrow: false, bgcolor: "#fff", font: { size: 11 } };  // the style sheet has the ground of the theme
    }) };
}

// The rates so far, and those to come.
export function planTraces({ plan, curve }) {
  const line = (name, x, y, more) => ({ type: "scatter", mode: "lines", name, x, y, hovertemplate: `${name} %{y:.3g}<extra></extra>`, ...more }), now = curve ? column(curve, "step").at(-1) ?? 0 : 0;
  const ahead = plan.steps.map((_, at) => at).filter((at) => plan.steps[at] >= now), [steps, scheduled, inForce] = [plan.steps, plan.scheduled, plan.in_force].map((each) => ahead.map((at) => each[at]));
  const made = curve ? [line("so far", column(curve, "step"), column(curve, "mean"), { line: { color: "#6f7682", width: 1.5 } })] : [];
  if (scheduled.some((each, at) => each !== inForce[at])) made.push(line("schedule", steps, scheduled, { line: { color: "#8b8f98", width: 1, dash: "dash" } }));
  return [...made, line("to come", steps, inForce, { line: { color: "#6f7682", width: 2, dash: "dot" } })];
}

const PLAN = { ...LAYOUT, height: 160, xaxis: { ...PLAIN, title: { text: "step" }, showgrid: false }, yaxis: { ...PLAIN, nticks: 4, rangemode: "tozero" } };

// The values of the command, by their rules; of an empty field the run takes its own.
function Settings({ rules, texts, setTexts, optimizers }) {
  const fields = Object.entries(rules).sort(([, one], [, other]) => one.at - other.at).filter(([name]) => name !== "optimizer" || optimizers.length);
  return html`<details class="settings"><summary>Range and steps</summary><div class="fields">${fields.map(([name, rule]) => {
    const given = { "aria-label": name, title: rule.doc, value: texts[name] ?? (name === "optimizer" ? optimizers[0] : ""), onChange: ({ target: { value } }) => setTexts((others) => ({ ...others, [name]: value })) };
    return html`<label key=${name}>${name} ${name === "optimizer" ? html`<select ...${given}>${optimizers.map((each) => html`<option>${each}</option>`)}</select>`
      : html`<input ...${given} autocomplete="off" maxlength="20" inputmode=${rule.kind === "str" ? "text" : "decimal"} placeholder="default" />`}<span class="quiet">${rule.doc}</span></label>`;
  })}</div></details>`;
}

export function read(texts, rules) {
  return Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, text.trim()]).filter(([, text]) => text !== "")
    .map(([name, text]) => [name, /^none$/i.test(text) && !rules[name].needed ? null : ["int", "float"].includes(rules[name].kind) && Number.isFinite(Number(text)) ? Number(text) : text]));
}

// The tunable that takes a rate, and its value: of a schedule, a factor.
export const change = ({ use: [name, factor] }, rate) => ({ [name]: Number((rate * factor).toPrecision(6)) });

// Each suggestion with a button that takes it; of the rate in force the button says so.
function Rates({ search, chosen, press, off, values }) {
  const rows = Object.entries(search.suggestions ?? {}).map(([name, each]) => ({ name, ...each }));
  if (chosen) rows.push({ name: "your click", why: "on the curve", rate: chosen });
  const inForce = (rate) => Object.entries(change(search, rate)).every(([name, value]) => values[name]?.value === value);
  return html`<table class="rates"><tbody>${rows.map(({ name, why, rate }) => html`<tr key=${name} data-name=${name}><td><s style=${{ borderColor: INKS[name] ?? OTHER }}></s><b>${capital(name)}</b> <span class="quiet">${why}</span></td>
    <td><code>${two(rate)}</code></td><td>${inForce(rate) ? html`<span class="quiet" role="status">in use</span>` : html`<button type="button" aria-label=${`Use ${two(rate)}`} disabled=${off} onClick=${() => press("tune", change(search, rate))}>Use</button>`}</td></tr>`)}</tbody></table>`;
}

export function LR({ store, view, press, off }) {
  const { search, plan } = view.lr ?? {}, command = view.commands.lr_find, rules = command?.values ?? {}, curve = store.curves.lr;
  const optimizers = Object.entries(view.tunables).filter(([name, { owner }]) => !owner && name.startsWith("lr.")).map(([name]) => name.slice(3));
  const [refused, setRefused] = useState(""), [texts, setTexts] = useState({}), [asked, setAsked] = useState({}), chosen = search && asked.planned === search.planned && asked.first === search.rates[0] ? asked.rate : undefined;
  const going = search && search.ended === undefined, why = view.may_steer ? command?.why_not ?? "" : "This link may only look";
  const traces = useMemo(() => search && searchTraces(search), [search]), layout = useMemo(() => search && searchLayout(search, chosen), [search, chosen]);
  const planned = useMemo(() => plan && planTraces({ plan, curve }), [plan, curve]);
  if (!command) return html`<p class="quiet">A search runs where the run was started: <code>trainer.lr_find()</code> in its notebook or script.</p>`;
  const find = async () => {
    setAsked({});
    const found = await press("lr_find", read(optimizers.length ? { optimizer: optimizers[0], ...texts } : texts, rules));
    setRefused(found.status === "refused" ? found.reason : "");
  };
  const button = going ? !view.state.standing && html`<button type="button" disabled=${off} onClick=${() => store.request({ ask: "cancel" })}>Cancel</button>`  // elsewhere it goes to its end
    : html`<button type="button" aria-disabled=${Boolean(why) || off} title=${why || command.doc} onClick=${why || off ? undefined : find}>${search ? "Search again" : "Find a rate"}</button>`;
  const words = why || (!search ? "Tries rates from low to high between two steps; then weights, data order and random streams are put back."
    : going ? `${count(search.rates.length)} of ${count(search.planned)} rates tried` : `${search.optimizer ? `Optimizer ${search.optimizer}: ` : ""}${capital(search.reason ?? search.note ?? "")}.`);
  return html`<div class="bar">${button}<span class=${search?.note ? "" : "quiet"} role="status">${words}</span></div>
    ${!why && !going && html`<${Settings} ...${{ rules, texts, setTexts, optimizers }} />`}${refused && !going && html`<p class="wrong" role="alert">${refused}</p>`}
    ${search && finite(search)[0].length > 1 && html`<div class="search"><div><${Figure} ...${{ store, traces, layout }} label=${`Loss against learning rate. ${search.reason ?? ""}`}
      onClick=${(rate) => setAsked({ rate, planned: search.planned, first: search.rates[0] })} /><p class="quiet">Click the curve to choose a rate.</p></div><${Rates} ...${{ search, chosen, press, off }} values=${view.values} /></div>`}
    ${plan && html`<h2>Rates to come</h2><${Figure} ...${{ store, traces: planned, layout: PLAN }} label="Learning rate so far and to come" />`}`;
}
