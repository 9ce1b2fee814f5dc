// The curves: traces and layout are pure functions of the bins, which tests read; only `Chart` knows plotly.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { RunLegend, behindOf, behindTraces } from "./behind.js";
import { column } from "./store.js";
import { isAveraged, short } from "./words.js";

const INKS = ["#3f83e8", "#dd7023", "#2a9d62", "#a259c4", "#c9483f", "#8a7a2c"];
const AXES = { step: (curve) => column(curve, "step"), epoch: (curve) => column(curve, "epoch"), samples: (curve) => column(curve, "samples"), time: (curve) => column(curve, "seconds") };

// Means over about `window` values around each; at the ends, where one side is missing, a line through them, so that neither end lags
// behind a slope. NaN stays a gap.
export function smoothed(values, window) {
  const reach = Math.floor(window / 2);
  if (reach < 1) return values;
  const sums = new Float64Array(values.length + 1), counts = new Float64Array(values.length + 1);
  values.forEach((value, at) => {
    const good = Number.isFinite(value);
    sums[at + 1] = sums[at] + (good ? value : 0);
    counts[at + 1] = counts[at] + good;
  });
  return values.map((value, at) => {
    if (!Number.isFinite(value)) return NaN;
    const size = Math.min(values.length, 2 * reach + 1), from = Math.max(0, Math.min(at - reach, values.length - size)), to = from + size, mean = (sums[to] - sums[from]) / (counts[to] - counts[from]);
    return from === at - reach && to === at + reach + 1 ? mean : mean + slope(values, from, to, at, mean);
  });
}

// What a line through some values adds to their mean at a place.
function slope(values, from, to, at, mean) {
  let [count, places, products, squares] = [0, 0, 0, 0];
  for (let each = from; each < to; each++) if (Number.isFinite(values[each])) { count += 1; places += each; }
  const middle = places / count;
  for (let each = from; each < to; each++) {
    if (!Number.isFinite(values[each])) continue;
    products += (each - middle) * (values[each] - mean);
    squares += (each - middle) ** 2;
  }
  return squares ? (products / squares) * (at - middle) : 0;
}

const isNoisy = (name) => name.startsWith("train/") || name.startsWith("grad_norm");
const base = (name) => name.split("@")[0];
const isLoss = (name) => base(name).split("/").length > 1 && base(name).endsWith("loss");

// Names of the losses, training first; each has its ink.
export const lossesOf = (curves) => Object.keys(curves).filter((name) => isLoss(name) && !name.includes("@")).sort((one, other) => other.startsWith("train/") - one.startsWith("train/"));

// The small plots: name of a record to its number.
export const smallOf = (curves) => Object.keys(curves).filter((name) => !name.includes("@") && (name.startsWith("lr") || name.startsWith("grad_norm"))).slice(0, 4);

// The records that are drawn: the own ones, then what only other runs have.
export const withOthers = (curves, others) => Object.assign({}, curves, ...others.map((run) => run.curves), curves);

export function traces(curves, { window = 33, axis = "step", hidden = new Set(), others = [] } = {}) {
  const all = withOthers(curves, others), losses = lossesOf(curves), small = smallOf(all);
  const plotOf = (name) => (isLoss(name) ? 0 : small.includes(name) ? small.indexOf(name) + 2 : undefined);
  const made = behindTraces(others, { plotOf, isNoisy, smoothed, axis, xOf: AXES[axis], window, hidden });
  const add = (name, at, more) => made.push({ type: "scatter", mode: "lines", name, xaxis: `x${at || ""}`, yaxis: `y${at || ""}`, hovertemplate: "%{y:.5g}", showlegend: false, ...more });
  for (const [name, curve] of Object.entries(curves)) {
    const kind = base(name), loss = losses.indexOf(kind), plot = loss >= 0 ? 0 : small.indexOf(kind) + 2;
    if (hidden.has(kind) || (loss < 0 && plot < 2)) continue;
    const x = AXES[axis](curve), color = INKS[Math.max(0, loss) % INKS.length], mean = column(curve, "mean");
    const silent = { hoverinfo: "skip", hovertemplate: undefined };
    if (name !== kind) {  // what a rewind took back
      add(name, plot, { x, y: isNoisy(kind) ? smoothed(mean, window / curve.stride) : mean, line: { color: "#8b8f98", width: 1, dash: "dot" }, ...silent });
    } else if (isNoisy(kind) && loss >= 0) {
      if (curve.stride > 1) {
        add(`${name} lowest`, plot, { x, y: column(curve, "low"), line: { width: 0 }, ...silent });
        add(`${name} highest`, plot, { x, y: column(curve, "high"), line: { width: 0 }, fill: "tonexty", fillcolor: `${color}38`, ...silent });
      } else if (window > 1) add(`${name} each step`, plot, { x, y: mean, line: { color, width: 1 }, opacity: 0.25, ...silent });
      add(name, plot, { x, y: smoothed(mean, window / curve.stride), line: { color, width: 2.25 } });
    } else if (loss >= 0) add(name, plot, { x, y: mean, mode: "lines+markers", line: { color, width: 2.25 }, marker: { size: 5 } });
    else add(name, plot, { x, y: isNoisy(kind) ? smoothed(mean, window / curve.stride) : mean, line: { color: "#6f7682", width: 1.5 } });
  }
  return made;
}

const PLAIN = { showline: false, zeroline: false, ticks: "", automargin: true, gridcolor: "rgba(128,128,128,.2)" };

// Powers of ten where the losses that are drawn span more than two of them, as in the still picture.
export function spansPowers(curves, hidden = new Set()) {
  let [least, largest] = [Infinity, 0];
  for (const name of lossesOf(curves)) {
    if (hidden.has(name)) continue;
    for (const value of column(curves[name], "mean")) {
      if (value <= 0) return false;
      if (value < least) least = value;
      if (value > largest) largest = value;
    }
  }
  return largest / least > 100;
}

// Lines where something was changed by hand.
export const changesOf = ({ journal }) => Object.values(journal?.entries ?? {}).filter(({ kind, undone }) => kind === "tune" && !undone).map(({ step }) => step);

export function layout(curves, { axis = "step", log = false, width = 900, changes = [] } = {}) {
  const small = smallOf(curves), narrow = width < 560, ticks = narrow ? 4 : 7;
  const made = {
    autosize: true, height: 360, margin: { l: 48, r: 10, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    hovermode: "x unified", hoverlabel: { namelength: 40 }, uirevision: `${axis} ${log}`, font: { size: 11, color: "#808080" },
    xaxis: { ...PLAIN, showgrid: false, nticks: ticks, tickformat: narrow ? "~s" : "" },
    yaxis: { ...PLAIN, domain: small.length ? [0.42, 1] : [0, 1], type: log ? "log" : "linear", nticks: 6, exponentformat: "e" }, annotations: [],
    shapes: axis === "step" ? [...new Set(changes)].map((x) => ({ type: "line", x0: x, x1: x, yref: "y domain", y0: 0, y1: 1, line: { color: "#b98a2f", width: 1, dash: "dot" } })) : [],
  };
  small.forEach((name, at) => {
    const gap = 0.06, wide = (1 - gap * (small.length - 1)) / small.length, from = at * (wide + gap), number = at + 2;
    made[`xaxis${number}`] = { ...PLAIN, showgrid: false, showticklabels: false, domain: [from, from + wide], anchor: `y${number}`, matches: "x" };
    made[`yaxis${number}`] = { ...PLAIN, domain: [0, 0.24], anchor: `x${number}`, nticks: 4, exponentformat: "e" };
    made.annotations.push({ text: name, x: from, y: 0.31, xref: "paper", yref: "paper", xanchor: "left", showarrow: false, font: { weight: 600 } });
  });
  return made;
}

// The curves for those who cannot see them.
export function inWords(curves) {
  const found = lossesOf(curves).map((name) => [name, column(curves[name], "mean").at(-1)]).filter(([, value]) => value !== undefined);
  return found.length ? found.map(([name, value]) => `${name} ${short(value)}`).join(", ") : "The curves start with the first record.";
}

export function Chart({ store, onStep }) {
  const box = useRef(), drawn = useRef({ at: 0 }), [window, setWindow] = useState(33), [chosen, setChosen] = useState("auto"), [axis, setAxis] = useState("step");
  const [hidden, setHidden] = useState(new Set()), click = useRef(onStep), [wrong, setWrong] = useState("");
  click.current = axis === "step" ? onStep : undefined;
  useEffect(() => {
    let plotly = null, timer = 0, gone = false;
    const draw = () => {
      timer = 0;
      const others = behindOf(store), same = drawn.current.curves === store.curves && drawn.current.others === store.others && drawn.current.drawn === store.view.drawn;
      if (gone || !plotly || document.hidden || same) return;
      const first = !box.current.data;
      const began = performance.now();
      drawn.current = { at: began, curves: store.curves, others: store.others, drawn: store.view.drawn };
      const log = chosen === "auto" ? spansPowers(store.curves, hidden) : chosen === "powers of ten", changes = changesOf(store.view);
      plotly.react(box.current, traces(store.curves, { window, axis, hidden, others }), layout(withOthers(store.curves, others), { axis, log, changes, width: box.current.clientWidth }), { displayModeBar: false, responsive: false });
      drawn.current.at = Math.max(began, performance.now() + 3 * (performance.now() - began) - 500);  // a quarter of the page's time at most
      if (first) box.current.on("plotly_click", ({ points }) => click.current?.(points[0].x));
    };
    // at most twice a second, and never in a page that nobody sees
    const later = () => { timer ||= setTimeout(draw, Math.max(0, drawn.current.at + 500 - performance.now())); };
    drawn.current = { at: 0 };
    const stop = store.watch(later), size = new ResizeObserver(() => plotly && box.current?.data && plotly.Plots.resize(box.current));
    document.addEventListener("visibilitychange", later);
    store.link.plotly().then((found) => { plotly = found; later(); if (!gone) size.observe(box.current); }, (error) => setWrong(error.message));
    return () => { gone = true; clearTimeout(timer); stop(); size.disconnect(); document.removeEventListener("visibilitychange", later); };
  }, [store, window, chosen, axis, hidden]);
  const toggle = (name) => setHidden(hidden.has(name) ? new Set([...hidden].filter((each) => each !== name)) : new Set([...hidden, name]));
  const losses = lossesOf(store.curves), others = behindOf(store), { earlier } = store.view.drawn ?? {};
  return html`<section class="tnb-plots" aria-label="Curves"><div class="bar plotbar"><b>Loss</b>
      <span class="legend">${losses.map((name, at) => html`<button type="button" key=${name} aria-pressed=${!hidden.has(name)} title=${`${hidden.has(name) ? "Show" : "Hide"} ${name}`} onClick=${() => toggle(name)}><s style=${{ borderColor: INKS[at % INKS.length] }}></s>${name}${isAveraged(store.view.run, name) ? " (average)" : ""}</button>`)}</span>
      <span class="space"></span>
      ${store.view.may_steer && (earlier !== undefined || others.length > 0) && html`<button type="button" class="chip" aria-pressed=${others.length > 0} title=${others.length ? "Hide the other runs" : "Show the last run of this kernel that has the same loss; the tab Runs has all of them"}
        onClick=${() => store.request({ ask: "run", ...(others.length ? { do: "hide" } : { do: "show", number: earlier }) })}>${others.length > 1 ? `${others.length} other runs` : "earlier run"}</button>`}
      <label>smooth <select aria-label="smooth" value=${String(window)} onChange=${(event) => setWindow(Number(event.target.value))}>${[1, 10, 33, 100, 300].map((each) => html`<option value=${String(each)}>${each === 1 ? "off" : each}</option>`)}</select></label>
      <label>y <select aria-label="y" value=${chosen} onChange=${(event) => setChosen(event.target.value)}>${["auto", "linear", "powers of ten"].map((each) => html`<option>${each}</option>`)}</select></label>
      <label>x <select aria-label="x" value=${axis} onChange=${(event) => setAxis(event.target.value)}>${Object.keys(AXES).map((each) => html`<option>${each}</option>`)}</select></label></div>
    ${others.length > 0 && html`<${RunLegend} ...${{ runs: others, hidden, toggle }} />`}
    <div class="chart" ref=${box} role="img" aria-label=${inWords(store.curves)}></div>
    ${(wrong || !losses.length) && html`<p class="quiet">${wrong || "The curves start with the first record."}</p>`}</section>`;
}
