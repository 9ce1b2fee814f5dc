// The map of layers: rows down, measurements across, on a canvas; hover names a cell, a click or the arrow keys choose one.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLook } from "./looks.js";
import { count, short } from "./words.js";

const STOPS = [[0, 63, 131, 232, 0.12], [0.4, 63, 131, 232, 1], [0.75, 125, 80, 230, 1], [1, 221, 112, 35, 1]], BAD = "#e0413a";

export function ink(share) {
  const at = Math.max(1, STOPS.findIndex(([place]) => share <= place)), [low, high] = [STOPS[at - 1], STOPS[at]], part = (share - low[0]) / (high[0] - low[0]);
  const [r, g, b, a] = [1, 2, 3, 4].map((each) => low[each] + part * (high[each] - low[each]));
  return `rgba(${r | 0},${g | 0},${b | 0},${a.toFixed(3)})`;
}

export const inWords = (value) => (Number.isNaN(value) ? "NaN" : !Number.isFinite(value) ? "inf" : value < 0 ? "not measured" : value === 0 ? "0" : value.toPrecision(3));

// Where a value stands between the lowest and the highest colour.
export function shareOf({ range: [low, high], log }) {
  const scale = log ? Math.log : (value) => value, span = scale(high) - scale(low) || 1;
  return (value) => (value <= low ? 0 : Math.min(1, (scale(value) - scale(low)) / span));
}

// Where a measurement begins, from 0 to 1: a column reaches to the next one, the last is as wide as the one before.
export function placeOf(steps) {
  const first = steps[0] ?? 0, last = steps.at(-1) ?? 0, end = steps.length > 1 ? 2 * last - steps.at(-2) : last + 1;
  return (number) => ((number < steps.length ? steps[number] : end) - first) / (end - first);
}

// Round steps below the map: number and place.
export function ticksOf(steps, width) {
  const first = steps[0] ?? 0, span = (steps.length > 1 ? 2 * steps.at(-1) - steps.at(-2) : first + 1) - first;
  const rough = span / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough)), wide = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power), found = [];
  for (let at = Math.ceil(first / wide) * wide; at < first + span * 0.97; at += wide) found.push([at, (at - first) / span]);
  return found;
}

export const heightOf = (rows) => Math.min(640, Math.max(60, 18 * rows));

function paint(canvas, map, cells, width, height) {
  const ratio = globalThis.devicePixelRatio || 1, { layers, steps } = map, share = shareOf(map), place = placeOf(steps);
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  const page = canvas.getContext("2d");
  for (let column = 0; page && column < steps.length; column++) {
    const left = Math.round(place(column) * canvas.width), right = Math.round(place(column + 1) * canvas.width);
    for (let row = 0; row < layers.length; row++) {
      const value = cells[row * steps.length + column];
      if (value < 0) continue;
      const top = Math.round((row / layers.length) * canvas.height), bottom = Math.round(((row + 1) / layers.length) * canvas.height);
      page.fillStyle = Number.isFinite(value) ? ink(share(value)) : BAD;
      page.fillRect(left, top, right - left, bottom - top);
    }
  }
}

const clip = (value, many) => Math.max(0, Math.min(many - 1, value));

function HeatMap({ map, cells, quantity, chosen, choose }) {
  const field = useRef(), canvas = useRef(), [width, setWidth] = useState(0), [tip, setTip] = useState(null), { layers, steps } = map, height = heightOf(layers.length), place = placeOf(steps);
  useEffect(() => {
    const size = new ResizeObserver(() => setWidth(field.current?.clientWidth ?? 0));
    size.observe(field.current);
    return () => size.disconnect();
  }, []);
  useEffect(() => { if (width) paint(canvas.current, map, cells, width, height); }, [map, cells, width, height]);
  const label = (row, column) => `${layers[row]}, step ${count(steps[column])}: ${inWords(cells[row * steps.length + column])}`;
  const at = (event) => {
    const box = field.current.getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
    let column = 0;
    while (column + 1 < steps.length && place(column + 1) <= part) column++;
    return [clip(Math.floor(((event.clientY - box.top) / box.height) * layers.length), layers.length), column];
  };
  const take = (row, column) => choose({ layer: layers[clip(row, layers.length)], step: steps[clip(column, steps.length)] });
  const row = chosen ? layers.indexOf(chosen.layer) : -1;
  const column = row < 0 ? -1 : steps.reduce((best, step, each) => (Math.abs(step - chosen.step) < Math.abs(steps[best] - chosen.step) ? each : best), 0);
  const key = (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    take(...(row < 0 ? [0, steps.length - 1] : [row + move[0], column + move[1]]));
  };
  const hover = (event) => {
    const box = field.current.getBoundingClientRect();
    setTip({ words: label(...at(event)), left: event.clientX - box.left, top: event.clientY - box.top });
  };
  const every = Math.ceil((14 * layers.length) / height), last = layers.map((_, each) => cells[each * steps.length + steps.length - 1]).map((value) => (Number.isFinite(value) ? value : Infinity));
  const top = last.indexOf(Math.max(...last));
  const summary = `Map of ${quantity}: ${layers.length} layers, steps ${count(steps[0])} to ${count(steps.at(-1))}. Last measurement: largest ${inWords(last[top])}, in ${layers[top]}. Arrow keys choose a cell.${row < 0 ? "" : ` Chosen: ${label(row, column)}.`}`;
  return html`<div class="heat-map">
    <div class="names">${layers.map((name, each) => each % every === 0 && html`<div key=${name} title=${name} style=${{ top: `${((each + 0.5) / layers.length) * height}px` }}><bdi>${name}</bdi></div>`)}</div>
    <div class="field" ref=${field} tabindex="0" role="application" aria-label=${summary} style=${{ height: `${height}px` }} onClick=${(event) => take(...at(event))} onKeyDown=${key} onMouseMove=${hover} onMouseLeave=${() => setTip(null)}>
      <canvas ref=${canvas}></canvas>${row >= 0 && html`<i class="chosen" style=${{ left: `${100 * place(column)}%`, width: `${100 * (place(column + 1) - place(column))}%`, top: `${(row / layers.length) * height}px`, height: `${height / layers.length}px` }}></i>`}
      ${tip && html`<div class="tip" style=${{ left: `${Math.min(tip.left + 12, Math.max(0, width - 180))}px`, top: `${tip.top + 16}px` }}>${tip.words}</div>`}</div>
    <div class="ticks">${ticksOf(steps, width || 600).map(([step, part]) => html`<span key=${step} style=${{ left: `${100 * part}%` }}>${count(step)}</span>`)}</div></div>`;
}

// Bars of the bins that have values, and at least eight.
export function barsOf({ shares, edges }) {
  const there = shares.flatMap((share, at) => (share > 0 ? [at] : []));
  if (!there.length) return null;
  const last = Math.min(shares.length - 1, Math.max(there.at(-1), there[0] + 7)), first = Math.max(0, Math.min(there[0], last - 7)), most = Math.max(...shares), ends = [...edges.map(short), "∞"];
  const bars = [];
  for (let at = first; at <= last; at++) bars.push({ share: shares[at], height: shares[at] / most, from: ends[at], to: ends[at + 1] });
  const top = bars.reduce((best, each) => (each.share > best.share ? each : best));
  return { bars, most, top };
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 0)} %`;

function Histogram({ what, ...found }) {
  const made = barsOf(found), one = `|${what.replace(/s$/, "")}|`;
  if (!made) return html`<p class="quiet">No finite values.</p>`;
  const { bars, most, top } = made;
  return html`<div class="bars" role="img" aria-label=${`Histogram of ${one}: from ${bars[0].from} to ${bars.at(-1).to}; most, ${percent(most)}, from ${top.from} to ${top.to}.`}>
      ${bars.map((each, at) => html`<span key=${at} title=${`${each.from} to ${each.to}: ${percent(each.share)}`}><i style=${{ height: `${100 * each.height}%` }}></i></span>`)}</div>
    <div class="bar-ends"><span>${bars[0].from}</span><span>${one}, highest bar ${percent(most)}</span><span>${bars.at(-1).to}</span></div>`;
}

function Details({ found }) {
  if (!found?.layer) return html`<p class="quiet">A click on the map, or the arrow keys on it, shows the numbers and the histogram of a layer.</p>`;
  return html`<h3>${found.layer}${found.step === undefined ? "" : ` · step ${count(found.step)}`}</h3>
    <table class="plain"><tbody>${Object.entries(found.numbers).map(([name, value]) => html`<tr key=${name}><td class="quiet">${name}</td><td class="num">${name === "near zero" ? percent(value) : short(value)}</td></tr>`)}</tbody></table>
    ${found.shares && html`<${Histogram} ...${found} />`}`;
}

export function Layers({ store, view }) {
  const [quantity, setQuantity] = useState("gradient"), [text, setText] = useState(""), [chosen, setChosen] = useState(null), version = JSON.stringify(view.looks?.layers ?? null);
  const map = useLook(store, "layers", { quantity, text }, version), one = useLook(store, chosen && "layer", { quantity, ...chosen }, version), { found, buffers } = map ?? {};
  const there = found?.layers?.length > 0, range = there && found.range.map((each) => (found.log ? short(each) : percent(each)));
  const wrong = there && buffers[0].some((value) => !Number.isFinite(value));
  return html`<div class="layers"><div class="bar"><span class="segments" role="group" aria-label="Quantity">${Object.entries(found?.quantities ?? {}).map(([name, tip]) => html`<button type="button" key=${name} title=${tip} aria-pressed=${name === quantity} onClick=${() => setQuantity(name)}>${name}</button>`)}</span>
      <input aria-label="Filter layers" placeholder="Filter layers" value=${text} onInput=${(event) => setText(event.target.value)} />
      ${there && html`<span class="heat-scale">${range[0]} <i></i> ${range[1]}${wrong && html` <u></u> not finite`}</span>${found.hidden > 0 && html`<span class="quiet">${count(found.hidden)} more layers: use the filter</span>`}`}</div>
    ${there ? html`<div class="sides"><${HeatMap} map=${found} cells=${buffers[0]} quantity=${quantity} chosen=${chosen} choose=${setChosen} /><div><${Details} found=${chosen && one?.found} /></div></div>`
      : html`<p class="quiet">${map?.reason ?? view.looks?.trouble ?? (text ? `No layer's name contains ${text}.` : "Nothing was measured yet: the first measurement is in the first step that is made.")}</p>`}</div>`;
}
