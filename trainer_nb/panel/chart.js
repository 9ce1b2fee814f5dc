// One figure, drawn whole whenever it changes. The kernel holds all of it at any moment, so a page that comes late, or a second
// time, shows the same as the others.
const CONFIG = { displayModeBar: false, displaylogo: false, doubleClick: false };

// plotly.js is in a model of its own: unpacked once in a page, by the first chart, for all.
async function unpack(model) {
  const script = await model.widget_manager.get_model(model.get("script").slice("IPY_MODEL_".length));
  const unpacked = new Blob([script.get("code")]).stream().pipeThrough(new DecompressionStream("gzip"));
  const url = URL.createObjectURL(new Blob([await new Response(unpacked).text()], { type: "text/javascript" }));
  try {
    await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
  return globalThis.Plotly;
}

function plotly(model) {
  const page = globalThis;
  page.trainer_nb_plotly ??= unpack(model).catch((error) => {
    page.trainer_nb_plotly = undefined;  // another chart may have more luck
    throw error;
  });
  return page.trainer_nb_plotly;
}

// Numbers come as bytes that may begin anywhere: copied to where floats may stand.
function floats(view) {
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

function unpacked(trace) {
  return { ...trace, x: floats(trace.x), y: floats(trace.y) };
}

// The scale of a y-axis: that of the points which are seen, so it follows a zoom in x. A logarithmic one counts in powers of ten.
const TAILS = 0.02, MARGIN = 0.25, AIR = 0.06;  // share of points that may be outliers; of their spread; of the height

function seen({ x, y }, span, log) {
  const found = [];
  for (let at = 0; at < y.length; at++)
    if (Number.isFinite(y[at]) && (!log || y[at] > 0) && (!span || (x[at] >= span[0] && x[at] <= span[1])))
      found.push(log ? Math.log10(y[at]) : y[at]);
  return Float64Array.from(found).sort();
}

// Without outliers: as far as the middle of the points reaches, and a quarter more, but never beyond the points.
function extent(sorted, outliers) {
  const last = sorted.length - 1, low = sorted[0], high = sorted[last];
  if (outliers) return [low, high];
  const from = sorted[Math.round(TAILS * last)], to = sorted[Math.round((1 - TAILS) * last)];
  const margin = MARGIN * (to - from);
  return [Math.max(low, from - margin), Math.min(high, to + margin)];
}

export function scale(traces, { span = null, log = false, outliers = true, zero = false } = {}) {
  const ends = traces.map((trace) => seen(trace, span, log)).filter((sorted) => sorted.length).map((sorted) => extent(sorted, outliers));
  if (!ends.length) return null;
  let low = Math.min(...ends.map((each) => each[0])), high = Math.max(...ends.map((each) => each[1]));
  if (zero && !log) [low, high] = [Math.min(0, low), Math.max(0, high)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= 1e-6 * size || high === low) {  // a flat line stands in the middle
    const half = log ? 0.5 : 0.1 * size || 1;
    return [low - half, high + half];
  }
  const air = AIR * (high - low);
  return [zero && low === 0 ? 0 : low - air, zero && high === 0 ? 0 : high + air];
}

// A triangle at the edge for points beyond it, at most one in each of 120 places.
function beyond(traces, [low, high], { span, log }) {
  const found = new Map(), edge = (value) => (log ? 10 ** value : value);
  const ends = span ?? [Math.min(...traces.map(({ x }) => x[0] ?? 0)), Math.max(...traces.map(({ x }) => x.at(-1) ?? 0))];
  for (const { x, y, line } of traces)
    for (let at = 0; at < y.length; at++) {
      const value = log ? Math.log10(y[at]) : y[at];
      if (!Number.isFinite(value) || (value >= low && value <= high) || x[at] < ends[0] || x[at] > ends[1]) continue;
      const up = value > high, place = `${up} ${Math.floor((120 * (x[at] - ends[0])) / (ends[1] - ends[0] || 1))}`;
      found.set(place, { x: x[at], y: edge(up ? high : low), value: y[at], up, color: line?.color });
    }
  const marks = [...found.values()], { xaxis, yaxis } = traces[0];
  return {
    x: marks.map((mark) => mark.x), y: marks.map((mark) => mark.y), xaxis, yaxis, mode: "markers", name: "beyond the scale", cliponaxis: false,
    marker: { size: 7, symbol: marks.map((mark) => `triangle-${mark.up ? "up" : "down"}`), color: marks.map((mark) => mark.color) },
    customdata: marks.map((mark) => mark.value), hovertemplate: "%{customdata:.5g}, beyond the scale<extra></extra>",
  };
}

// What has no value, NaN and inf, stands at the x-axis.
function stand(marks, [low], log) {
  for (const trace of marks) trace.y = trace.y.map(() => (log ? 10 ** low : low));
}

// Titles of small plots end where the next one begins: their middle is left out, since names often differ at their ends.
let canvas = null;
function fitTitles(layout, box) {
  const plot = box.offsetWidth - (layout.margin?.l ?? 0) - (layout.margin?.r ?? 0), room = Math.min(0.36 * plot - 8, 0.28 * plot + 30);
  const ink = (canvas ??= document.createElement("canvas")).getContext("2d");
  ink.font = `600 12px ${getComputedStyle(box).fontFamily}`;
  for (const title of layout.annotations ?? []) {
    if (title.name !== "title" || plot <= 0) continue;
    const [, open, text, end] = title.text.match(/^(<b>)?(.*?)(<\/b>)?$/s), letters = [...plain(text)];
    if (ink.measureText(letters.join("")).width <= room) continue;
    let kept = letters.length;
    const cut = () => [...letters.slice(0, Math.ceil(kept / 2)), "…", ...letters.slice(letters.length - Math.floor(kept / 2))].join("");
    while (kept > 2 && ink.measureText(cut()).width > room) kept--;
    title.hovertext = text;
    title.text = (open ?? "") + escaped(cut()) + (end ?? "");
  }
}

const plain = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&amp;/g, "&");
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// Gives each y-axis its scale, but those that a person has zoomed keep theirs; `spans`: x-axis to the part of it that is seen.
function fit(data, layout, spans, zoomed) {
  const added = [];
  for (const key of Object.keys(layout).filter((name) => /^yaxis\d*$/.test(name))) {
    const axis = layout[key], short = key.replace("yaxis", "y");
    const own = data.filter((trace) => (trace.yaxis ?? "y") === short && trace.type !== "heatmap");
    const traces = own.filter((trace) => trace.meta !== "axis"), marks = own.filter((trace) => trace.meta === "axis");
    const log = axis.type === "log", outliers = layout.meta?.outliers !== false;
    if (zoomed.has(key)) Object.assign(axis, { range: zoomed.get(key), autorange: false });
    if (zoomed.has(key)) stand(marks, zoomed.get(key), log);
    if (axis.fixedrange || zoomed.has(key) || !traces.length) continue;
    const span = spans[(traces[0].xaxis ?? "x").replace("x", "xaxis")];
    const range = scale(traces, { span, log, outliers, zero: axis.rangemode === "tozero" });
    if (!range) continue;
    Object.assign(axis, { range, autorange: false });
    stand(marks, range, log);
    if (!outliers) added.push(beyond(traces, range, { span, log }));
  }
  return [...data, ...added];
}

// The values at the cursor are those of points within 80 px. Where neighbours of a curve are farther apart, points without a marker
// lie between them on its line, each with the value of the nearer one. There are none beyond its ends: a run that has ended has no
// value there.
const REACH = 80, APART = 16;  // px: how far values are told; from one added point to the next

export function reaching(trace, [from, to], pixels, log) {
  const { x, y, marker } = trace, pixel = (to - from) / pixels, level = log ? Math.log : Number;
  if (!String(trace.mode).includes("markers") || !trace.hovertemplate?.startsWith("%{y") || !(pixel > 0)) return trace;
  const found = [], shown = x.filter((each) => each >= from && each <= to).length;
  const whole = x.every(Number.isInteger);  // steps or samples
  const every = Math.ceil(shown / (marker.maxdisplayed || Infinity)) || 1;  // plotly would count those without a marker, too
  for (let at = 0; at < x.length; at++) {
    found.push([x[at], y[at], y[at], at % every ? 0 : marker.size]);
    const start = Math.max(x[at], from), end = Math.min(x[at + 1], to), many = 2 * Math.ceil((end - start) / (2 * APART * pixel)) || 0;
    if (!(x[at + 1] - x[at] > REACH * pixel) || !Number.isFinite(y[at]) || !Number.isFinite(y[at + 1])) continue;
    for (let turn = 0; turn < many; turn++) {
      const between = start + ((turn + 0.5) * (end - start)) / many, place = whole ? Math.round(between) : between, share = (place - x[at]) / (x[at + 1] - x[at]);
      const on = level(y[at]) + share * (level(y[at + 1]) - level(y[at]));
      if (Number.isFinite(on)) found.push([place, log ? Math.exp(on) : on, share < 0.5 ? y[at] : y[at + 1], 0]);
    }
  }
  if (found.length === x.length) return trace;
  const [places, levels, values, sizes] = [0, 1, 2, 3].map((part) => found.map((each) => each[part]));
  return { ...trace, x: places, y: levels, customdata: values, marker: { ...marker, size: sizes, opacity: 1, line: { width: 0 }, maxdisplayed: 0 },
           hovertemplate: trace.hovertemplate.replaceAll("%{y", "%{customdata") };
}

// Lets all curves reach. Of each x-axis the part that is seen counts, else that of all its points.
function reachAll(data, layout, spans, box) {
  const plot = box.offsetWidth - (layout.margin?.l ?? 0) - (layout.margin?.r ?? 0), whole = {};
  for (const { x, xaxis = "x" } of data) {
    const ends = [...(whole[xaxis] ?? []), ...[x.find(Number.isFinite), x.findLast(Number.isFinite)].filter(Number.isFinite)];
    whole[xaxis] = ends.length ? [Math.min(...ends), Math.max(...ends)] : [];
  }
  return data.map((trace) => {
    const { xaxis = "x", yaxis = "y" } = trace, key = xaxis.replace("x", "xaxis"), [left, right] = layout[key]?.domain ?? [0, 1];
    const log = layout[yaxis.replace("y", "yaxis")]?.type === "log";
    return reaching(trace, spans[key] ?? whole[xaxis], plot * (right - left), log);
  });
}

export default {
  // `loaded`: a promise of plotly.js, where a page has it from elsewhere; `model` is then anything with get, on, off and send.
  render({ model, el, loaded = plotly(model) }) {
    const box = el.appendChild(document.createElement("div"));
    box.setAttribute("role", "img");
    let Plotly = null, gone = false, asked = 0, timer = 0, click = 0, resets = 0, told = 0;
    const zoomed = new Map();  // y-axis to the range that a person gave it
    const draw = () => {
      asked = 0;
      if (!Plotly) return;
      const { data, layout } = model.get("figure");
      const shape = structuredClone(layout), spans = {};
      const kept = box.layout?.uirevision === `${layout.uirevision} ${resets}`;
      if (!kept) zoomed.clear();
      for (const [key, axis] of Object.entries(box.layout ?? {}))
        if (kept && /^xaxis\d*$/.test(key) && axis.autorange === false) spans[key] = axis.range;
      shape.uirevision = `${layout.uirevision} ${resets}`;
      box.setAttribute("aria-label", layout.meta?.summary || "Curves");
      fitTitles(shape, box);
      const drawn = fit(data.map(unpacked), shape, spans, zoomed);
      Plotly.react(box, reachAll(drawn, shape, spans, box), shape, CONFIG);
      if (!listening) listening = listen();
    };
    // A click chooses a place on the x-axis; the second one of a double click, which ends a zoom, does not.
    let listening = false;
    const listen = () => {
      box.on("plotly_click", ({ points, event }) => {
        clearTimeout(click);
        if (event.detail < 2) click = setTimeout(() => model.send({ x: Number(points[0].x) }), 350);
      });
      box.on("plotly_relayout", (changed) => {
        const keys = Object.keys(changed ?? {});
        for (const key of keys) if (/^yaxis\d*\.range/.test(key)) zoomed.set(key.split(".")[0], [...box.layout[key.split(".")[0]].range]);
        if (keys.some((key) => /^[xy]axis/.test(key))) ask();
        if (keys.some((key) => /^xaxis\d*\.(range|autorange)/.test(key))) tell();
      });
      box.on("plotly_doubleclick", () => { clearTimeout(click); resets++; ask(); tell(null); });
      return true;
    };
    // The kernel sends finer points for what is zoomed into, once the hand rests.
    const tell = (span) => {
      clearTimeout(told);
      told = setTimeout(() => {
        const axis = box.layout?.xaxis, [name] = String(box.layout?.uirevision ?? "").split(" ");
        const seen = axis?.autorange === false ? [...axis.range].map(Number) : null;
        model.send({ axis: name, span: span === undefined ? seen : span });
      }, 200);
    };
    const ask = () => { asked ||= requestAnimationFrame(draw); };  // a page in the background draws when it is looked at
    const observer = new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => { if (Plotly && box.data && box.offsetWidth) Promise.resolve(Plotly.Plots.resize(box)).then(ask); }, 60);
    });
    model.on("change:figure", ask);
    observer.observe(el);
    loaded.then(
      (found) => { Plotly = found; if (!gone) ask(); },
      (error) => { box.textContent = `The curves cannot be drawn (${error.message}): reload the page.`; });
    return () => {
      gone = true;
      model.off("change:figure", ask);
      observer.disconnect();
      clearTimeout(timer);
      clearTimeout(click);
      clearTimeout(told);
      cancelAnimationFrame(asked);
      Plotly?.purge(box);
    };
  },
};
