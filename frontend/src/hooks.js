// The hooks: switch, order, points, and what they cost while this is open.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { Bar } from "./figure.js";
import { useAsked, useSelected } from "./tunables.js";
import { count, duration } from "./words.js";

const ENDED = ["finished", "stopped", "interrupted", "error"];

export const hooksOf = ({ hooks, points }) => Object.entries(hooks).sort(([, one], [, other]) => one.at - other.at).map(([name, row]) => ({ name, ...points[name], ...row }));

// The names of the hooks that raised where the run stands, and not at an earlier time.
export const failedOf = ({ hooks = {}, state, place }) => (state.name === "error" ? Object.keys(hooks).filter((name) => hooks[name].failure?.step === place.step) : []);

export function hooksTitle(view) {
  const rows = Object.values(view.hooks), failed = failedOf(view).length;
  return `Hooks ${count(rows.length)}${failed ? ` · ${failed} error${failed > 1 ? "s" : ""}` : ""}`;
}

const total = ({ seconds }) => Object.values(seconds).reduce((sum, each) => sum + each, 0) || 1;
const percent = (share) => (share < 0.0995 ? `${(100 * share).toFixed(1)} %` : `${Math.round(100 * share)} %`);

// Parts of a step's time: name and share.
export const partsOf = (times) => Object.entries(times.seconds).map(([name, seconds]) => ({ name, share: seconds / total(times) })).filter(({ name, share }) => share >= (name === "rest" ? 0.01 : 0.0005));

function Split({ times, state }) {
  if (!times) return html`<p class="quiet">${ENDED.includes(state.name) ? "Times are measured while the run trains and this tab is open." : state.name === "paused" ? "Times are measured in steps while this tab is open: press Step or Resume." : "Times appear after the first steps."}</p>`;
  const parts = partsOf(times), words = parts.map(({ name, share }) => `${name} ${percent(share)}`);
  return html`<p class="quiet">A step takes <b>${duration(total(times) / times.steps)}</b> · counted in ${count(times.steps)} steps</p>
    <div class="split" aria-hidden="true">${parts.map(({ name, share }, at) => html`<span key=${name} class=${name} style=${{ flexGrow: share }} title=${words[at]}></span>`)}</div>
    <p class="quiet parts">${parts.map(({ name }, at) => html`<span key=${name}><i class=${name} aria-hidden="true"></i>${words[at]}</span>`)}</p>`;
}

function Order({ row, pending, press, off }) {
  const [draft, setDraft] = useState(null), [refused, setRefused] = useState(""), box = useSelected();
  const choose = async (text) => {
    const order = Number(text), whole = text.trim() !== "" && Number.isInteger(order);
    const found = whole ? await press("tune", { [`${row.name}.order`]: order }) : { reason: `${text} is not an order: a whole number, low runs first` };
    const taken = ["applied", "void"].includes(found.status);
    setRefused(taken ? "" : found.reason || found.status);
    if (taken) setDraft(null);
  };
  return html`<input ref=${box} class=${`order ${refused ? "refused" : ""}`} inputmode="numeric" autocomplete="off" maxlength="12" aria-label=${`Order of ${row.name}`} aria-invalid=${Boolean(refused)} disabled=${off}
    title=${refused || "A whole number, low runs first"} value=${draft ?? pending ?? row.order} onInput=${(event) => setDraft(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Escape") { setDraft(null); setRefused(""); } }} onChange=${(event) => choose(event.target.value)} />`;
}

function Row({ row, view, press, off }) {
  const [asked, turn] = useAsked((on) => press("tune", { [`${row.name}.enabled`]: on }));
  const { times, values } = view, waits = (what) => values[`${row.name}.${what}`]?.waits && values[`${row.name}.${what}`].pending;
  const enabled = waits("enabled"), order = waits("order"), share = times ? Math.min(1, (times.hooks?.[row.name] ?? 0) / total(times)) : null;
  return html`<tr data-name=${row.name} class=${row.enabled ? "" : "off"}>
    <td><input type="checkbox" role="switch" aria-label=${`${row.name} on or off`} disabled=${off} checked=${asked ?? (typeof enabled === "boolean" ? enabled : row.enabled)}
      onChange=${(event) => turn(event.target.checked)} /></td>
    <td><${Order} ...${{ row, press, off }} pending=${typeof order === "number" ? order : undefined} /></td>
    <td class="what"><b>${row.name}</b> <span class="quiet">${row.label}</span>${row.own && html` <span class="tag">yours</span>`}
      ${typeof order === "number" && html` <span class="waits">${row.order} → ${order}</span>`}${typeof enabled === "boolean" && html` <span class="waits">→ ${enabled ? "on" : "off"}</span>`}
      ${row.error && html`<div class="wrong">${row.error}</div>`}</td>
    <td class="quiet points">${(row.points ?? []).join(" · ")}</td>
    <td>${row.calls ? count(row.calls) : "–"}</td><td>${row.calls ? duration(row.seconds) : "–"}</td><td>${row.calls ? ((1000 * row.seconds) / row.calls).toFixed(2) : "–"}</td>
    <td class="share"><${Bar} share=${share ?? 0} /><span>${!row.enabled ? "off" : share === null || !row.calls ? "–" : percent(share)}</span></td></tr>`;
}

export function Hooks({ view, press, off }) {
  const [ranked, setRanked] = useState(false), rows = hooksOf(view), failed = rows.filter(({ failure }) => failure);
  const shown = ranked ? rows.toSorted((one, other) => (other.seconds ?? 0) - (one.seconds ?? 0)) : rows;
  return html`<${Split} times=${view.times} state=${view.state} />
    <div class="bar"><span class="space"></span><button type="button" aria-pressed=${ranked} onClick=${() => setRanked(!ranked)}>By cost</button></div>
    <div class="scroller"><table><thead><tr><th>on</th><th>order</th><th>hook</th><th class="points">points</th><th>calls</th><th>total</th><th>ms/call</th><th title="Of the time of a training step">share of step</th></tr></thead>
      <tbody>${shown.map((row) => html`<${Row} key=${row.name} ...${{ row, view, press, off }} />`)}</tbody></table></div>
    ${failed.map(({ name, failure }) => html`<details key=${name} class="trouble" open=${failure.step === view.place.step}><summary><b>${name}.${failure.point}</b> <span class="quiet">step ${count(failure.step)}, epoch ${failure.epoch + 1}, batch ${failure.batch + 1}</span></summary>
      <pre>${failure.traceback?.trimEnd()}</pre></details>`)}`;
}
