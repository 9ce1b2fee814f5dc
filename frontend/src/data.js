// One evaluation: the confusion matrix, the samples with the highest loss; and what was logged.
import { html } from "htm/preact";
import { useState } from "preact/hooks";
import { useLook } from "./looks.js";
import { count, short } from "./words.js";

const nameOf = (names, number) => (Number.isInteger(number) && names?.[number] !== undefined ? names[number] : String(number));

function Matrix({ matrix, names, correct }) {
  const { chosen, counts, sums, total, classes } = matrix;
  return html`<h3>Confusion matrix <span class="quiet">${count(correct)} of ${count(total)} right, ${(100 * correct / Math.max(1, total)).toFixed(2)} %</span></h3>
    <table class="confusion"><thead><tr><th class="side">target</th>${chosen.map((at) => html`<th scope="col" key=${at} title=${`predicted ${nameOf(names, at)}`}>${nameOf(names, at)}</th>`)}</tr></thead>
      <tbody>${chosen.map((target, row) => html`<tr key=${target}><th scope="row" title=${`target ${nameOf(names, target)}`}>${nameOf(names, target)}</th>${chosen.map((at, column) => {
        const found = counts[row][column], share = found / Math.max(1, sums[row]), styles = [at === target ? "right" : "", share > 0.55 ? "full" : "", found ? "" : "zero"].join(" ");
        return html`<td key=${at} class=${styles} style=${{ "--p": `${(100 * share).toFixed(0)}%` }} title=${`target ${nameOf(names, target)}, predicted ${nameOf(names, at)}: ${count(found)} of ${count(sums[row])}`}>${found || "·"}</td>`;
      })}</tr>`)}</tbody></table>
    ${chosen.length < classes && html`<p class="quiet">${chosen.length} of ${count(classes)} classes: the most errors.</p>`}`;
}

export function captionOf({ loss, index, place, target, prediction }, names) {
  const one = (value) => (Number.isInteger(value) || typeof value === "string" ? nameOf(names, value) : short(value)), where = index === undefined ? `no. ${count(place + 1)}` : `#${count(index)}`;
  const what = target === undefined ? "" : prediction === undefined ? one(target) : `${one(target)} → ${one(prediction)}`;
  return { loss: short(loss), where, what };
}

function Sample({ sample, names }) {
  const { loss, where, what } = captionOf(sample, names);
  return html`<figure>${sample.picture && html`<img src=${`data:image/png;base64,${sample.picture}`} alt=${`sample ${where}, ${what}`} />`}${sample.text !== undefined && html`<p>${sample.text}</p>`}
    <figcaption><b>${loss}</b> ${where}${what && html`<br />${what}`}${sample.scaled && html`<br /><span title="to the range of this sample: its values are not from 0 to 1">scaled</span>`}</figcaption></figure>`;
}

const Gallery = ({ samples, children }) => html`<div class=${`gallery ${samples.some(({ text }) => text !== undefined) ? "texts" : ""}`}>${children}</div>`;

export function Data({ store, view }) {
  const [split, setSplit] = useState(""), [step, setStep] = useState(null), answer = useLook(store, "data", { split, step }, view.looks?.data), found = answer?.found;  // step null: the last one
  if (!found?.steps?.length) return html`<p class="quiet">${answer?.reason ?? found?.trouble ?? "No evaluation was made since samples are recorded."}</p>`;
  const { at, names, worst = [], logged = [], absent = {}, steps } = found, last = steps.length - 1, move = (to) => setStep(to >= last ? null : steps[to]);
  return html`<div class="data"><div class="bar">
      <button type="button" aria-label="The evaluation before" aria-disabled=${at <= 0} onClick=${at <= 0 ? undefined : () => move(at - 1)}>‹</button><button type="button" aria-label="The next evaluation" aria-disabled=${at >= last} onClick=${at >= last ? undefined : () => move(at + 1)}>›</button>
      ${found.splits.length > 1 && html`<select aria-label="Loader" value=${found.split} onChange=${(event) => { setStep(null); setSplit(event.target.value); }}>${found.splits.map((each) => html`<option key=${each}>${each}</option>`)}</select>`}
      <span aria-live="polite">evaluation ${count(at + 1)} of ${count(steps.length)} kept <span class="quiet">· ${found.split} · step ${count(found.step)} · epoch ${count(found.epoch + 1)} · ${count(found.samples)} samples</span></span></div>
    <div class="sides"><div>${found.matrix ? html`<${Matrix} ...${found} />` : html`<h3>Confusion matrix</h3><p class="quiet">None: ${absent.matrix ?? "the targets and predictions are not classes"}.</p>`}</div>
      <div><h3>Highest loss <span class="quiet">loss, sample, target → prediction</span></h3>${worst.length ? html`<${Gallery} samples=${worst}>${worst.map((sample, each) => html`<${Sample} key=${each} ...${{ sample, names }} />`)}<//>` : html`<p class="quiet">None: ${absent.losses ?? "no losses of samples were kept"}.</p>`}</div></div>
    ${logged.length > 0 && html`<h3>Logged</h3><${Gallery} samples=${logged}>${logged.map((each, number) => html`<figure key=${number}>${each.picture ? html`<img src=${`data:image/png;base64,${each.picture}`} alt=${each.name} />` : html`<p>${each.text}</p>`}<figcaption><b>${each.name}</b> step ${count(each.step)}</figcaption></figure>`)}<//>`}</div>`;
}
