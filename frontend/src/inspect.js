// The last batch, the layers in the last step, conditions for the next pause.
import { html } from "htm/preact";
import { useEffect, useState } from "preact/hooks";
import { Bar } from "./figure.js";
import { count, short } from "./words.js";

const GOING = ["idle", "running", "detached"], TYPES = { float32: "fp32", float64: "fp64", float16: "fp16", bfloat16: "bf16" };

const USUAL = "loss is nan, step == 500, grad_norm > 5, valid/loss < 0.1";

const Value = ({ value }) => (typeof value === "string" ? html`<b class="wrong">${value}</b>` : short(value));  // "nan", "inf"

function Tensors({ rows }) {
  return html`<div class="scroller" role="region" aria-label="Tensors" tabindex="0"><table class="numeric"><thead><tr>${["name", "shape", "type", "min", "mean", "max"].map((each) => html`<th>${each}</th>`)}</tr></thead><tbody>
    ${rows.map((row) => html`<tr key=${row.name}><th scope="row"><code>${row.name}</code></th><td><code>${row.shape.join(" × ") || "scalar"}</code></td><td class="quiet">${TYPES[row.kind] ?? row.kind}</td>
      ${["min", "mean", "max"].map((each) => html`<td><${Value} value=${row[each]} /></td>`)}</tr>`)}</tbody></table></div>`;
}

function Layers({ rows, step, last }) {
  const norms = rows.map(({ norm }) => norm).filter(Number.isFinite), largest = Math.max(...norms, 0) || 1;
  return html`<div class="scroller" role="region" aria-label="Layers" tabindex="0"><table class="numeric"><thead><tr><th>layer</th><th title="Of the gradient, before clipping">${last ? "norm of the last step" : `norm in step ${count(step)}`}</th>
    <th title="Norm of the update by norm of the weights">update/weight</th></tr></thead><tbody>
    ${rows.map(({ name, norm, ratio }) => html`<tr key=${name}><th scope="row">${name}</th><td class="share"><${Bar} share=${Number.isFinite(norm) ? norm / largest : typeof norm === "string" ? 1 : 0} /><span><${Value} value=${norm} /></span></td>
      <td class="quiet"><${Value} value=${ratio} /></td></tr>`)}</tbody></table></div>`;
}

// Code that reads the last batch and its prediction.
export function codeFor({ state, run }, tensors = []) {
  const names = tensors.map(({ name }) => name), batch = names.filter((each) => each.startsWith("batch"));
  const pair = !batch.length || batch.join() === "batch[0],batch[1]", known = !names.length || names.some((each) => each.startsWith("pred"));
  return [state.in_cell ? "# after Detach, in any cell:" : "# in any cell:", "with trainer.paused():", `    ${pair ? "x, y" : "batch"} = trainer.batch`,
    known && "    pred = trainer.pred", run.loaders?.length && "    trainer.validate()"].filter(Boolean).join("\n");
}

function Breakpoints({ view, press, off }) {
  const [text, setText] = useState(""), [refused, setRefused] = useState(""), rows = [...new Set(view.breakpoints ?? [])];
  const add = async (event) => {
    event.preventDefault();
    const words = text.trim();
    if (!words) return;
    const found = await press("pause_when", { text: words }), wrong = found.status === "refused";
    setRefused(wrong ? found.reason : "");
    if (!wrong) setText("");
  };
  return html`<h2>Pause when</h2><form class="bar" onSubmit=${add}><input aria-label="Pause when" placeholder="loss > 10" maxlength="200" autocomplete="off" disabled=${off} value=${text} onInput=${(event) => setText(event.target.value)} /><button disabled=${off}>Add</button></form>
    ${refused ? html`<p class="wrong" role="alert">${refused}</p>` : html`<p class="quiet">${USUAL}</p>`}
    <ul>${rows.map((each) => html`<li key=${each}><code>${each}</code> <button type="button" aria-label=${`No longer pause when ${each}`} disabled=${off} onClick=${() => press("pause_not_when", { text: each })}>Remove</button></li>`)}</ul>`;
}

export function Inspect({ store, view, press, off }) {
  const { inspect: found, place, state, run } = view, there = (run.panes ?? []).includes("inspect");
  const rests = !GOING.includes(state.name), old = there && rests && found?.step !== place.step;
  useEffect(() => {  // the run came here without a pause: a rewind, or the end of trainer.step()
    if (old && !off) store.command("inspect", { on: true });
  }, [store, old, off, place.step]);
  const words = !there ? "Batches and gradients stay in the process of the run: look at them in its notebook or script."
    : rests ? "" : "Pause to see the last batch, its prediction and its loss, and the gradient and the update of each layer. While this tab is open the layers are measured, which takes a little of each step.";
  return html`${words && html`<p class="quiet">${words}</p>`}
    <div class="looks">${found && html`<div><h2>Last batch <span class="quiet">step ${count(found.step)}</span></h2>${found.tensors.length ? html`<${Tensors} rows=${found.tensors} />` : html`<p class="quiet">No batch was taken yet.</p>`}</div>
      <div><h2>Gradient norm by layer</h2>${found.layers.length ? html`<${Layers} rows=${found.layers} step=${found.layers_step} last=${found.layers_step === found.step} />`
        : html`<p class="quiet">Layers are measured in ${state.name === "paused" ? "the next step: press Step." : "steps with this tab open."}</p>`}</div>`}
      <div>${there && !state.standing && html`<h2>Inspect with your own code</h2><pre>${codeFor(view, found?.tensors)}</pre>`}<${Breakpoints} ...${{ view, press, off }} /></div></div>`;
}
