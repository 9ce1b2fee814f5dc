// The curves: traces and layout are pure functions of the bins, which tests read; only `Chart` knows plotly.
import { html } from "htm/preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { RunLegend, allOf, behindOf, behindTraces } from "./behind.js";
import { PLAIN } from "./figure.js";
import { NOT_FINITE, gapTrace } from "./gaps.js";
import { useKept } from "./kept.js";
import { MARK_AXIS, changesOf, literal, markLines, markTraces, spotsOf } from "./marks.js";
import { leaveOut } from "./outliers.js";
import { Save, svgOf } from "./save.js";
import { column } from "./store.js";
import { isAveraged, isBranch, ownNames, recordOf, short } from "./words.js";
import { cut, finerOf, withFiner } from "./zoom.js";

const INKS = ["#3f83e8", "#dd7023", "#2a9d62", "#a259c4", "#c9483f", "#8a7a2c"];
const AXES = { step: (curve) => column(curve, "step"), epoch: (curve) => column(curve, "epoch"), samples: (curve) => column(curve, "samples"), time: (curve) => column(curve, "seconds") };

// Means over about `window` values around each; at the ends, where one side is missing, a line through them, so that neither end lags
// behind a slope, but never beyond the values themselves: powers of ten have no place for less than 0. A slope that is mere noise
// would turn the end up or down, so it counts the less, the less it stands out from the noise. NaN stays a gap.
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
    return from === at - reach && to === at + reach + 1 ? mean : within(values, from, to, mean + slope(values, from, to, at, mean));
  });
}

function within(values, from, to, wanted) {
  let [least, largest] = [Infinity, -Infinity];
  for (let each = from; each < to; each++) if (Number.isFinite(values[each])) { least = Math.min(least, values[each]); largest = Math.max(largest, values[each]); }
  return Math.min(largest, Math.max(least, wanted));
}

// What a line through some values adds to their mean at a place.
function slope(values, from, to, at, mean) {
  let [count, places, products, squares, all] = [0, 0, 0, 0, 0];
  for (let each = from; each < to; each++) if (Number.isFinite(values[each])) { count += 1; places += each; }
  const middle = places / count;
  for (let each = from; each < to; each++) {
    if (!Number.isFinite(values[each])) continue;
    products += (each - middle) * (values[each] - mean);
    squares += (each - middle) ** 2;
    all += (values[each] - mean) ** 2;
  }
  const explained = products ** 2 / squares, noise = Math.max(0, all - explained) / Math.max(1, count - 2);
  return explained > 0 ? (products / squares) * (at - middle) * Math.max(0, 1 - 4 * noise / explained) : 0;
}

const isNoisy = (name) => name.startsWith("train/") || name.startsWith("grad_norm");
const splitOf = (name) => name.split("/")[0];
const isLoss = (name) => recordOf(name).split("/").length > 1 && recordOf(name).endsWith("loss");
const isDrive = (name) => name.startsWith("lr") || name.startsWith("grad_norm");
const named = (curves) => ownNames(Object.keys(curves).filter((name) => !isBranch(name)));

// Names of the losses, training first; each has its ink.
export const lossesOf = (curves) => named(curves).filter(isLoss).sort((one, other) => other.startsWith("train/") - one.startsWith("train/"));

// The small plots, title and records: what drives the run, then metrics; one of several loaders has one plot.
export function smallOf(curves) {
  const drives = named(curves).filter(isDrive).slice(0, 4).map((name) => ({ title: name, names: [name] })), metrics = new Map();
  for (const name of named(curves)) {
    const metric = name.slice(splitOf(name).length + 1);
    if (metric && !isLoss(name) && !isDrive(name) && !name.startsWith("time/")) metrics.set(metric, [...(metrics.get(metric) ?? []), name]);
  }
  return [...drives, ...[...metrics].map(([metric, names]) => ({ title: names.length > 1 ? metric : names[0], names }))];
}

export const MOST_PLOTS = 9;  // small ones, unless a person wants all

// The ink of a loss; a metric has that of the loss of its loader.
function inkOf(name, losses, all) {
  const loss = losses.findIndex((each) => each === name || (!losses.includes(name) && splitOf(each) === splitOf(name)));
  if (loss >= 0) return INKS[loss % INKS.length];
  const splits = [...new Set(named(all).filter((each) => each.includes("/")).map(splitOf).filter((each) => each !== "train"))];
  return INKS[(splitOf(name) === "train" ? 0 : losses.length + Math.max(0, splits.indexOf(splitOf(name)))) % INKS.length];
}

// The records that are drawn: the own ones, then what only other runs have.
export const withOthers = (curves, others) => Object.assign({}, curves, ...others.map((run) => run.curves), curves);

// `small`: the small plots that are drawn; `others`: runs behind the own one, or all of them where none is before the others (`front`).
export function traces(curves, { window = 33, axis = "step", hidden = new Set(), others = [], front = false, small = smallOf(withOthers(curves, others)) } = {}) {
  const losses = lossesOf(curves), places = new Map(small.flatMap(({ names }, at) => names.map((name) => [name, at + 2])));
  const plotOf = (name) => (isLoss(name) ? 0 : places.get(name));
  const made = behindTraces(others, { plotOf, isNoisy, smoothed, axis, xOf: AXES[axis], window, hidden, front });
  const add = (name, at, more) => made.push({ type: "scatter", mode: "lines", name: literal(name), xaxis: `x${at || ""}`, yaxis: `y${at || ""}`, hovertemplate: "%{y:.5g}", showlegend: false, ...more });
  for (const [name, curve] of Object.entries(curves)) {
    const kind = recordOf(name), loss = losses.includes(kind), plot = loss ? 0 : places.get(kind);
    if (hidden.has(kind) || plot === undefined) continue;
    const x = AXES[axis](curve), color = isDrive(kind) ? "#6f7682" : inkOf(kind, losses, curves), mean = column(curve, "mean");
    const silent = { hoverinfo: "skip", hovertemplate: undefined };
    if (name !== kind) {  // what a rewind took back
      add(name, plot, { x, y: isNoisy(kind) ? smoothed(mean, window / curve.stride) : mean, line: { color: "#8b8f98", width: 1, dash: "dot" }, ...silent });
    } else if (isNoisy(kind) && loss) {
      if (curve.stride > 1) {
        add(`${name} lowest`, plot, { x, y: column(curve, "low"), line: { width: 0 }, ...silent });
        add(`${name} highest`, plot, { x, y: column(curve, "high"), line: { width: 0 }, fill: "tonexty", fillcolor: `${color}38`, ...silent });
      } else if (window > 1) add(`${name} each step`, plot, { x, y: mean, line: { color, width: 1 }, opacity: 0.25, ...silent });
      add(name, plot, { x, y: smoothed(mean, window / curve.stride), line: { color, width: 2.25 } });
    } else if (loss) add(name, plot, { x, y: mean, mode: "lines+markers", line: { color, width: 2.25 }, marker: { size: 5 } });
    else if (isNoisy(kind) || isDrive(kind)) add(name, plot, { x, y: isNoisy(kind) ? smoothed(mean, window / curve.stride) : mean, line: { color, width: 1.5 } });
    else add(name, plot, { x, y: mean, mode: "lines+markers", line: { color, width: 1.75 }, marker: { size: 4, maxdisplayed: 60 } });
    if (name === kind) made.push(...gapTrace(name, curve, AXES[axis], plot));
  }
  return made;
}


// Powers of ten where the losses that are drawn span more than two of them, as in the still picture. `runs`: curves of each.
export function spansPowers(runs, hidden = new Set()) {
  let [least, largest] = [Infinity, 0];
  for (const curves of runs) {
    for (const name of lossesOf(curves)) {
      if (hidden.has(name)) continue;
      for (const value of column(curves[name], "mean")) {
        if (value <= 0) return false;
        if (value < least) least = value;
        if (value > largest) largest = value;
      }
    }
  }
  return largest / least > 100;
}

// A format for numbers of an axis that are huge or tiny; plotly would give all of them the exponent of the largest, as in 0.95e+12.
function formatOf(drawn, axis) {
  const sizes = drawn.filter(({ yaxis }) => yaxis === axis).map(({ y }) => Math.abs(y.findLast(Number.isFinite) ?? 0)), most = Math.max(0, ...sizes);
  return most >= 1e6 || (most > 0 && most < 1e-4) ? { tickformat: "~e" } : {};
}

// The range of an axis on which all has one value: plotly would take 1 on both sides, whatever the value.
export function flatRange(drawn, axis) {
  let found;
  for (const { y } of drawn.filter(({ yaxis }) => yaxis === axis)) {
    for (const value of y) {
      if (!Number.isFinite(value)) continue;
      if (found !== undefined && value !== found) return undefined;
      found = value;
    }
  }
  return found ? [found - Math.abs(found) / 2, found + Math.abs(found) / 2] : undefined;
}

// Whether an axis has any value; where all are not finite, its numbers would be those of the crosses.
const hasValues = (drawn, axis) => drawn.some(({ yaxis, name, y }) => yaxis === axis && name !== NOT_FINITE && y.some(Number.isFinite));

const ENDS = { t: 8, b: 28 }, MAIN = 194, ROW = 130, TITLE = 50;  // pixels

// How many small plots stand side by side.
const acrossOf = (many, width) => Math.min(many, many === 4 && width >= 760 ? 4 : width < 560 ? 2 : 3);

// A title that has room for so many letters; long names often differ at their end.
export const fitted = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(text.length - Math.floor(most / 2))}`);

const rowsOf = (small, width) => (small.length ? Math.ceil(small.length / acrossOf(small.length, width)) : 0);

// The pixels that all plots need at least.
export function leastHeight(small, width) {
  const rows = rowsOf(small, width);
  return ENDS.t + ENDS.b + (rows ? MAIN + ROW * rows : 324);
}

// `drawn`: the traces; `spots`: where something was changed by hand; `room`: pixels that are there, which the large plot takes.
export function layout(small, { axis = "step", log = false, width = 900, room = 0, spots = [], drawn = [] } = {}) {
  const narrow = width < 560, ticks = narrow ? 4 : 7, across = acrossOf(small.length, width), rows = rowsOf(small, width), least = leastHeight(small, width);
  const height = Math.max(least, room), large = MAIN + height - least, inner = height - ENDS.t - ENDS.b, up = (pixels) => Math.max(0, 1 - pixels / inner);
  const made = {
    autosize: true, height, margin: { l: 48, r: 10, ...ENDS }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    hovermode: "x unified", hoverlabel: { namelength: 40 }, uirevision: axis, font: { size: 11, color: "#808080" },
    xaxis: { ...PLAIN, showgrid: false, nticks: ticks, tickformat: narrow ? "~s" : "", hoverformat: axis === "step" ? ",d" : "" },
    yaxis: { ...PLAIN, domain: [rows ? up(large) : 0, 1], type: log ? "log" : "linear", nticks: 6, ...(log ? {} : formatOf(drawn, "y")), uirevision: `${axis} ${log}` }, yaxis99: MARK_AXIS, annotations: [], shapes: markLines(spots),
  };
  small.forEach(({ title }, at) => {
    const gap = narrow ? 0.14 : 0.06, wide = (1 - gap * (across - 1)) / across, from = (at % across) * (wide + gap), top = large + ROW * Math.floor(at / across), number = at + 2, flat = flatRange(drawn, `y${number}`);
    made[`xaxis${number}`] = { ...PLAIN, showgrid: false, showticklabels: false, hoverformat: made.xaxis.hoverformat, domain: [from, from + wide], anchor: `y${number}`, matches: "x" };
    made[`yaxis${number}`] = { ...PLAIN, domain: [up(top + ROW), up(top + TITLE)], anchor: `x${number}`, nticks: 4, ...formatOf(drawn, `y${number}`), ...(flat ? { range: flat } : { autorange: true }), showticklabels: !drawn.length || hasValues(drawn, `y${number}`) };
    made.annotations.push({ text: literal(fitted(title, Math.max(8, Math.floor((wide * (width - 58)) / 7)))), hovertext: literal(title), x: from, y: up(top + TITLE - 4), yanchor: "bottom", xref: "paper", yref: "paper", xanchor: "left", showarrow: false, font: { weight: 600 } });
  });
  return made;
}

// The curves for those who cannot see them.
export function inWords(curves) {
  const found = [...lossesOf(curves), ...smallOf(curves).flatMap(({ names }) => names)].map((name) => [name, column(curves[name], "mean").at(-1)]).filter(([, value]) => value !== undefined);
  return found.length ? found.map(([name, value]) => `${name} ${short(value)}`).join(", ") : "The curves start with the first record.";
}

const WINDOWS = [1, 10, 33, 100, 300], SCALES = ["auto", "linear", "powers of ten"];

// `all`: the run of the feed is one of several, and none is before the others.
export function Chart({ store, onStep, all = false }) {
  const box = useRef(), drawn = useRef({ at: 0 }), library = useRef(null), [window, setWindow] = useKept("smooth", 33, WINDOWS), [chosen, setChosen] = useKept("y", "auto", SCALES), [axis, setAxis] = useKept("x", "step", Object.keys(AXES));
  const [hidden, setHidden] = useState(new Set()), [every, setEvery] = useState(false), [outliers, setOutliers] = useKept("outliers", true, [true, false]), click = useRef(onStep), moved = useRef(() => {}), [wrong, setWrong] = useState("");
  click.current = axis === "step" ? onStep : undefined;
  const zoom = useRef(null);  // range on the x-axis, finer rows of it, and the generation of the curves to which they belong
  const tall = useRef({});  // name of a y-axis to the range that a person has chosen
  useLayoutEffect(() => { zoom.current = null; tall.current = {}; }, [store, axis]);
  const behind = () => (all ? allOf(store) : behindOf(store)), front = () => (all ? {} : store.curves);
  useLayoutEffect(() => {  // its end is at once; that of useEffect comes a frame after the box has gone
    let plotly = null, timer = 0, rest = 0, gone = false, pressed = false, clicked = 0, doubled = -Infinity;
    const draw = () => {
      timer = 0;
      const near = zoom.current?.generation === store.generation ? zoom.current : null, { curves, others: beside, ownHidden, view } = store, seen = { curves, near, finer: near?.finer, beside, ownHidden, drawn: view.drawn, journal: view.journal, name: all && view.runs?.rows?.[0]?.name, width: box.current?.clientWidth, room: box.current?.clientHeight };
      const same = Object.entries(seen).every(([name, value]) => drawn.current[name] === value);
      if (gone || !plotly || document.hidden || pressed || same) return;
      const first = !box.current.data, began = performance.now(), others = behind(), own = front(), { width } = seen;
      drawn.current = { at: began, ...seen };
      const log = chosen === "auto" ? spansPowers(all ? others.map((each) => each.curves) : [own], hidden) : chosen === "powers of ten", found = smallOf(withOthers(own, others)), small = every ? found : found.slice(0, MOST_PLOTS);
      const lines = traces(withFiner(own, near?.finer), { window, axis, hidden, others, front: all, small }).map((each) => cut(each, near?.range)), spots = all ? [] : spotsOf(changesOf(view), own, AXES[axis], width);
      box.current.style.minHeight = `${leastHeight(small, width)}px`;
      const shape = layout(small, { axis, log, width, room: box.current.clientHeight, spots, drawn: lines }), far = outliers ? [] : leaveOut(lines, shape, tall.current);
      plotly.react(box.current, [...lines, ...far, ...markTraces(spots)], shape, { displayModeBar: false, responsive: false });
      drawn.current.at = Math.max(began, performance.now() + 3 * (performance.now() - began) - 500);  // a quarter of the page's time at most
      if (first) {
        box.current.on("plotly_click", ({ points: [{ x }] }) => {  // of a double click, too
          clearTimeout(clicked);
          if (performance.now() - doubled > 300) clicked = setTimeout(() => click.current?.(x), 400);
        });
        box.current.on("plotly_relayout", (change) => {
          for (const name of Object.keys(change).filter((each) => /^yaxis\d*\.range/.test(each)).map((each) => each.split(".")[0])) tall.current[name] = [...box.current.layout[name].range];
          if (Object.keys(change).some((name) => name.startsWith("xaxis"))) moved.current();
        });
        box.current.on("plotly_doubleclick", () => { clearTimeout(clicked); doubled = performance.now(); tall.current = {}; moved.current(); });
      }
    };
    moved.current = () => {  // a part of the x-axis was chosen, or all of it again
      const { range, autorange } = box.current.layout.xaxis, chosenPart = zoom.current = autorange || !range ? null : { range: [...range], finer: null, generation: store.generation };
      later();
      clearTimeout(rest);
      if (chosenPart && !all) rest = setTimeout(async () => {
        chosenPart.finer = await finerOf(store, store.curves, AXES[axis], chosenPart.range);
        if (!gone) later();
      }, 300);
    };
    // at most twice a second, and never in a page that nobody sees
    const later = () => { timer ||= setTimeout(draw, Math.max(0, drawn.current.at + 500 - performance.now())); };
    drawn.current = { at: 0 };
    const stop = store.watch(later), size = new ResizeObserver(() => {
      if (!plotly || !box.current?.data) return;
      plotly.Plots.resize(box.current);
      later();  // another size has room for other titles
    });
    const press = ({ type, target }) => {  // plotly forgets a click or a chosen part if it draws meanwhile
      pressed = type === "pointerdown" && box.current.contains(target);
      if (!pressed) later();
    };
    const heard = { visibilitychange: later, pointerdown: press, pointerup: press, pointercancel: press };
    for (const [type, hear] of Object.entries(heard)) document.addEventListener(type, hear);
    store.link.plotly().then((found) => { plotly = library.current = found; later(); if (!gone) size.observe(box.current); }, (error) => setWrong(error.message));
    return () => { gone = true; clearTimeout(timer); clearTimeout(rest); clearTimeout(clicked); stop(); size.disconnect(); for (const [type, hear] of Object.entries(heard)) document.removeEventListener(type, hear); };
  }, [store, window, chosen, axis, hidden, every, outliers, all]);
  const toggle = (name) => setHidden(hidden.has(name) ? new Set([...hidden].filter((each) => each !== name)) : new Set([...hidden, name]));
  const others = behind(), there = withOthers(front(), others), losses = lossesOf(all ? there : store.curves), small = smallOf(there), { earlier } = store.view.drawn ?? {};
  const shown = () => [...(all ? [] : [{ name: store.view.run.name, curves: store.curves }]), ...behind().filter(({ number }) => !hidden.has(`#${number}`))];
  const draw = async () => {
    if (!library.current || !box.current?.data) throw new Error("the curves are not drawn yet");
    return svgOf(library.current, box.current);
  };
  return html`<section class="tnb-plots" aria-label="Curves"><div class="bar plotbar"><b>Loss</b>
      <span class="legend">${losses.map((name, at) => html`<button type="button" key=${name} aria-pressed=${!hidden.has(name)} title=${`${hidden.has(name) ? "Show" : "Hide"} ${name}`} onClick=${() => toggle(name)}>${!all && html`<s style=${{ borderColor: INKS[at % INKS.length] }}></s>`}${name}${isAveraged(store.view.run, name) ? " (average)" : ""}</button>`)}</span>
      <span class="space"></span>
      ${!all && store.view.may_steer && (earlier !== undefined || others.length > 0) && html`<button type="button" class="chip" aria-pressed=${others.length > 0} title=${others.length ? "Hide the other runs" : "Show the last run of this kernel that has the same loss; the tab Runs has all of them"}
        onClick=${() => store.request({ ask: "run", ...(others.length ? { do: "hide" } : { do: "show", number: earlier }) })}>${others.length > 1 ? `${others.length} other runs` : "earlier run"}</button>`}
      ${small.length > MOST_PLOTS && html`<button type="button" class="chip" aria-pressed=${every} title="Show the small plots of all records" onClick=${() => setEvery(!every)}>all ${small.length} plots</button>`}
      <button type="button" class="chip" aria-pressed=${outliers} title=${outliers ? "Points far from the rest are in the scale" : "Points far from the rest are left out of the scale; a triangle at the edge marks each of them"} onClick=${() => setOutliers(!outliers)}>outliers</button>
      <label title="The mean of so many steps around each">smooth <select aria-label="smooth" value=${String(window)} onChange=${(event) => setWindow(Number(event.target.value))}>${WINDOWS.map((each) => html`<option value=${String(each)}>${each === 1 ? "off" : each}</option>`)}</select></label>
      <label>y <select aria-label="y" value=${chosen} onChange=${(event) => setChosen(event.target.value)}>${SCALES.map((each) => html`<option>${each}</option>`)}</select></label>
      <label>x <select aria-label="x" value=${axis} onChange=${(event) => setAxis(event.target.value)}>${Object.keys(AXES).map((each) => html`<option>${each}</option>`)}</select></label>
      <${Save} name=${all ? "runs" : store.view.run.name} runs=${shown} hidden=${hidden} draw=${draw} /></div>
    ${others.length > 0 && html`<${RunLegend} ...${{ runs: others, hidden, toggle }} />`}
    <div class="chart" ref=${box} role="img" aria-label=${all ? others.map(({ name, curves }) => `${name}: ${inWords(curves)}`).join("; ") : inWords(store.curves)}></div>
    ${(wrong || !losses.length) && html`<p class="quiet">${wrong || "The curves start with the first record."}</p>`}</section>`;
}
