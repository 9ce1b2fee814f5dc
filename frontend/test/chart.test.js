import { render } from "preact";
import { html } from "htm/preact";
import { beforeEach, expect, test, vi } from "vitest";
import { MOST_PLOTS, flatRange, inWords, layout, leastHeight, smallOf, smoothed, traces } from "../src/chart.js";
import { gapsOf } from "../src/gaps.js";
import { changesOf, markTraces, spotsOf } from "../src/marks.js";
import { beyond, leaveOut, rangeWithout } from "../src/outliers.js";
import { Panel } from "../src/panel.js";
import { csvOf, fileName, pictureOf, svgOf } from "../src/save.js";
import { Store, column } from "../src/store.js";
import { cut, finerOf, stepsIn, withFiner } from "../src/zoom.js";
import { until } from "./until.js";

beforeEach(() => sessionStorage.clear());

const rows = (values, stride = 1) => ({ stride, rows: Float32Array.from(values.flatMap((value, at) => [stride * (at + 1), 0, value - 1, value + 1, value, stride, at, 8 * at, at])) });
const CURVES = { "train/loss": rows([3, 2, 1]), "valid/loss": rows([2]), lr: rows([0.001, 0.001]), "train/accuracy": rows([0.5]), "valid/accuracy": rows([0.7]), "test/<u>mae</u>": rows([9]), "time/data": rows([1]), "valid/accuracy\n0": rows([0.1]) };

test("the ends of a smoothed curve stay within its values", () => {
  const falling = Float64Array.from({ length: 60 }, (_, at) => Math.exp(-at / 4)), made = smoothed(falling, 33);
  expect([Math.min(...made), Math.max(...made)].map((each, at) => (at ? each <= 1 : each >= falling.at(-1)))).toEqual([true, true]);
});

test("noise turns no end of a smoothed curve, and a slope in noise is followed", () => {
  let seed = 1;
  const noise = () => (seed = (seed * 48271) % 2147483647) / 2147483647 - 0.5, runs = (level) => Array.from({ length: 200 }, () => smoothed(Float64Array.from({ length: 100 }, (_, at) => level(at) + noise()), 33).at(-1));
  const spread = (ends, level) => Math.sqrt(ends.reduce((sum, each) => sum + (each - level) ** 2, 0) / ends.length);
  const still = spread(runs(() => 2), 2), sloping = runs((at) => 2 - at / 50), mean = sloping.reduce((sum, each) => sum + each) / sloping.length;
  expect(still).toBeLessThan(1.5 * Math.sqrt(1 / 12 / 33));  // a plain mean has 1.0 of this, a line through noise 2.0
  expect(Math.abs(mean - (2 - 99 / 50))).toBeLessThan(0.15);  // a plain mean lags behind by 0.32
});

test("metrics have small plots after the rate; one of several loaders has one", () => {
  expect(smallOf(CURVES)).toEqual([{ title: "lr", names: ["lr"] }, { title: "accuracy", names: ["train/accuracy", "valid/accuracy"] }, { title: "test/<u>mae</u>", names: ["test/<u>mae</u>"] }]);
  const found = traces(CURVES, { window: 1 }), of = (name) => found.find((each) => each.name === name);
  expect([of("train/accuracy").yaxis, of("valid/accuracy").yaxis, of("test/&lt;u&gt;mae&lt;/u&gt;").yaxis, of("valid/accuracy\n0").yaxis]).toEqual(["y3", "y3", "y4", "y3"]);
  expect(of("train/accuracy").line.color).toBe(of("train/loss").line.color);
  expect(of("valid/accuracy").line.color).toBe(of("valid/loss").line.color);
  expect(new Set(["train/loss", "valid/loss", "test/&lt;u&gt;mae&lt;/u&gt;"].map((name) => of(name).line.color)).size).toBe(3);
  expect(found.some(({ name }) => name === "time/data")).toBe(false);
  expect(inWords(CURVES)).toContain("valid/accuracy 0.7");
});

test("a metric with an @ in its name has a plot, and is no branch; what is huge or tiny is written alone", () => {
  const curves = { "valid/acc@5": rows([0.5, 0.9]), "valid/acc@5\n0": rows([0.1]), "valid/huge": rows([9e11, 9.5e11]) }, small = smallOf(curves), drawn = traces(curves);
  expect(small.map(({ title }) => title)).toEqual(["valid/acc@5", "valid/huge"]);
  expect(drawn.map(({ line: { dash } }) => dash)).toEqual([undefined, "dot", undefined]);
  const made = layout(small, { drawn });
  expect([made.yaxis2.tickformat, made.yaxis3.tickformat, made.xaxis.hoverformat]).toEqual([undefined, "~e", ",d"]);
});

test("small plots stand in rows, and the losses keep their height", () => {
  const many = (count) => Array.from({ length: count }, (_, at) => ({ title: `m${at}`, names: [`m${at}`] })), pixels = ({ height, yaxis: { domain } }) => Math.round((domain[1] - domain[0]) * (height - 36));
  expect([1, 3, 4, 9].map((count) => layout(many(count), { width: 700 }).height)).toEqual([360, 360, 490, 620]);
  expect([1, 3, 9].map((count) => pixels(layout(many(count), { width: 700 })))).toEqual([194, 194, 194]);
  expect([layout(many(4), { width: 900 }).height, layout(many(3), { width: 400 }).height]).toEqual([360, 490]);
  const high = layout(many(3), { width: 700, room: 500 });  // what is there belongs to the large plot
  expect([high.height, pixels(high), leastHeight(many(3), 700), layout([], { room: 500 }).height]).toEqual([500, 334, 360, 500]);
  const made = layout(many(MOST_PLOTS), { width: 700 }), all = Array.from({ length: MOST_PLOTS }, (_, at) => made[`yaxis${at + 2}`].domain);
  expect(all.every(([low, high]) => low >= 0 && low < high && high < made.yaxis.domain[0])).toBe(true);
  expect(all.at(-1)[0]).toBe(0);
});

test("a rate that stays has a range around it, and one that moves that of plotly", () => {
  const drawn = traces({ lr: rows([0.001, 0.001]) });
  expect(flatRange(drawn, "y2").map((each) => Number(each.toPrecision(3)))).toEqual([0.0005, 0.0015]);
  expect(layout([{ title: "lr", names: ["lr"] }], { drawn }).yaxis2.range).toEqual(flatRange(drawn, "y2"));
  expect(layout([{ title: "lr", names: ["lr"] }], { drawn: traces({ lr: rows([0.001, 0.002]) }) }).yaxis2).toMatchObject({ autorange: true });
  expect([[NaN, NaN], [NaN, 2]].map((values) => layout([{ title: "lr", names: ["lr"] }], { drawn: traces({ lr: { ...rows(values), rows: rows(values).rows.map((each, at) => (at % 9 === 5 ? Number(Number.isFinite(values[Math.floor(at / 9)])) : each)) } }) }).yaxis2.showticklabels)).toEqual([false, true]);
  expect([flatRange(traces({ lr: rows([0, 0]) }), "y2"), flatRange(traces({ lr: rows([NaN, -2]) }), "y2")]).toEqual([undefined, [-3, -1]]);
});

const JOURNAL = { entries: {
  2: { step: 1, kind: "tune", what: "lr", change: "0.1 → <b>0.2", source: "panel", by: "Ann" }, 1: { step: 1, kind: "pause", what: "pause" }, 4: { step: 60, kind: "hook", what: "noise", change: "off", source: "code" },
  5: { step: 61, kind: "tune", what: "lr", change: "0.2 → 0.3", source: "panel" }, 3: { step: 50, kind: "tune", what: "lr", undone: true }, 6: { step: 500, kind: "rewind", what: "rewind", source: "panel" } } };

test("marks have the numbers of the journal and say what was done; those that are near share one", () => {
  const curves = { "train/loss": rows(Array.from({ length: 100 }, (_, at) => at)), "train/loss\n0": rows(Array.from({ length: 200 }, () => 0)) }, changes = changesOf({ journal: JOURNAL });
  expect(changes.map(({ number }) => number)).toEqual([2, 4, 5, 6]);
  const spots = spotsOf(changes, curves, (curve) => column(curve, "step"), 900), [{ x, y, text, customdata, yaxis }] = markTraces(spots);
  expect([x, text, yaxis]).toEqual([[1, 60, 100], ["2", "4–5", "6"], "y99"]);
  expect(customdata.slice(0, 2)).toEqual(["2 · step 1: lr 0.1 → &lt;b&gt;0.2 (panel, Ann)", "4 · step 60: noise off (code)<br>5 · step 61: lr 0.2 → 0.3 (panel)"]);
  expect(y.every((each) => each > 0.9)).toBe(true);
  expect(layout([], { spots }).shapes.map(({ x0 }) => x0)).toEqual([1, 60, 100]);
  expect(spotsOf(changes, curves, (curve) => column(curve, "samples"), 900).map((each) => each.x)).toEqual([0, 472, 792]);
  expect([spotsOf(changes, {}, () => []), markTraces([])]).toEqual([[], []]);
});

test("discs do not touch, however wide their numbers are", () => {
  const curves = { "train/loss": rows(Array.from({ length: 1000 }, () => 0)) }, changes = Array.from({ length: 40 }, (_, at) => ({ number: at + 8, step: 25 * (at + 1), kind: "tune" }));
  for (const width of [300, 820, 2000]) {
    const spots = spotsOf(changes, curves, (curve) => column(curve, "step"), width), [{ x, marker: { size } }] = markTraces(spots);
    x.slice(1).forEach((each, at) => expect((each - x[at]) * width / 1000).toBeGreaterThan((size[at] + size[at + 1]) / 2));
    expect(spots.flatMap((spot) => spot.changes)).toEqual(changes);
    expect(spots.length).toBeGreaterThan(width / 150);
  }
});

test("a file has a line for each point that is shown, of all runs", () => {
  const odd = { stride: 4, rows: Float32Array.from([7, 1, NaN, NaN, Infinity, 0, 0.5, 16, 2]) };
  const text = csvOf([{ name: 'a "b", c', curves: { lr: rows([0.1]), "train/loss": odd, "train/loss\n0": rows([1]) } }, { name: "d", curves: { lr: rows([0.25]), "valid/loss": rows([1]) } }], new Set(["valid/loss"]));
  expect(text.split("\n")).toEqual(["run,record,step,epoch,samples,seconds,value,lowest,highest,of", '"a ""b"", c",lr,1,0,0,0,0.1,-0.9,1.1,1', `"a ""b"", c",train/loss,${7 + 2 ** 24},0.5,16,2,inf,nan,nan,4`, "d,lr,1,0,0,0,0.25,-0.75,1.25,1", ""]);
  expect([fileName("<img src=x>/../net", "csv"), fileName("→", "svg"), fileName("", "svg")]).toEqual(["_img_src_x_.._net.csv", "_.svg", "run.svg"]);
});

test("a picture is on white, and names its lines", async () => {
  const data = traces(CURVES, { window: 3 }), { data: drawn, layout: made } = pictureOf(data, layout(smallOf(CURVES)));
  expect([made.paper_bgcolor, made.plot_bgcolor, made.showlegend]).toEqual(["white", "white", true]);
  expect(drawn.filter(({ showlegend }) => showlegend).map(({ name }) => name)).toEqual(["train/loss", "valid/loss"]);
  const asked = [], plotly = { toImage: async (figure, how) => { asked.push(how); return `data:image/svg+xml,${encodeURIComponent("<svg>100 % → é</svg>")}`; } };
  expect(await svgOf(plotly, { data, layout: {}, getBoundingClientRect: () => ({ width: 800.4, height: 360 }) })).toBe("<svg>100 % → é</svg>");
  expect(asked).toEqual([{ format: "svg", width: 800, height: 388 }]);
});

test("the buttons of the chart save what it shows, and say where there is nothing yet", async () => {
  const link = { listen() {}, ask: async () => {}, plotly: () => new Promise(() => {}) }, store = new Store(link), box = document.body.appendChild(document.createElement("div")), saved = [];
  store.hear({ v: 1, view: { may_steer: true, run: { name: "net/1" }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} }, curves: [{ name: "train/loss", stride: 1, from: 0 }] }, [rows([3, 2]).rows]);
  render(html`<${Panel} store=${store} part="plots" />`, box);
  const button = (text) => [...box.querySelectorAll("button")].find((each) => each.textContent === text);
  vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(function click() { saved.push([this.download, this.href]); });
  vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => { saved.push(blob); return "blob:made"; });
  button("CSV").click();
  expect([saved[1], saved[0].type, (await saved[0].text()).split("\n")[1]]).toEqual([["net_1.csv", "blob:made"], "text/csv", "net/1,train/loss,1,0,0,0,3,2,4,1"]);
  button("Picture").click();
  await until(() => expect(box.querySelector(".plotbar .wrong").textContent).toBe("No picture: the curves are not drawn yet"));
  vi.restoreAllMocks();
});

test("a cross stands where a record is not finite, and says where and how long", () => {
  const curve = (finite, stride) => ({ stride, rows: Float32Array.from(finite.flatMap((each, at) => [stride * (at + 1), 0, 1, 3, each ? 2 + at : NaN, each, at, at, at])) });
  expect([gapsOf(curve([1, 1, 1], 1)), gapsOf(curve([4, 4, 2], 4))]).toEqual([[], []]);  // the last row is not full yet
  expect(gapsOf(curve([4, 3, 0, 4, 0], 4)).map(({ row, from, to, goes }) => [row, from, to, goes])).toEqual([[1, 5, 12, false], [4, 17, 20, true]]);
  const [gap, ...more] = traces({ "train/loss": curve([1, 0, 1, 0, 0], 1) }, { window: 1 }).filter(({ name }) => name === "not finite");
  expect([[...gap.x], gap.y, gap.mode, gap.customdata, more]).toEqual([[2, 4], [2, 2], "markers", ["train/loss is not finite at step 2", "train/loss is not finite from step 4 on"], []]);
  const bad = { stride: 1, rows: Float32Array.from([16, 32, 48].flatMap((step, at) => [step, 0, 1, 1, at ? NaN : 1, at ? 0 : 1, 0, 0, 0])) };
  expect(gapsOf(bad)).toMatchObject([{ from: 32, to: 48, goes: true }]);  // an evaluation tells of no step before it
  const many = traces({ lr: curve(Array.from({ length: 300 }, (_, at) => at % 2), 1) }).find(({ name }) => name === "not finite");
  expect([many.x.length, many.x[0], many.yaxis, many.y[0]]).toEqual([50, 1, "y2", 3]);
  expect(traces({ "train/loss": curve([0, 0], 1) }).find(({ name }) => name === "not finite")).toMatchObject({ x: [1], y: [1] });
});

const stepOf = (curve) => column(curve, "step");

test("of a part of the x-axis what is outside is not drawn, lines run to its edges", () => {
  const [line] = traces({ "valid/loss": rows([5, 4, 3, 2, 1]) }), gap = { mode: "markers", x: [1, 3, 5], y: [0, 0, 0], customdata: ["d", "e", "f"], name: "abc" };
  expect([...cut(line, [2.5, 3.5]).x]).toEqual([2, 3, 4]);
  expect([...cut(line, [0, 9]).y]).toEqual([5, 4, 3, 2, 1]);
  expect(cut(gap, [2, 4])).toEqual({ mode: "markers", x: [3], y: [0], customdata: ["e"], name: "abc" });
  expect(cut(line, undefined)).toBe(line);
});

test("the rows of a part are finer, and what comes after them stays", () => {
  const coarse = { "train/loss": rows([8, 7, 6, 5], 4), "valid/loss": rows([1]) }, fine = { "train/loss": rows([9, 8, 7, 6, 5, 4, 3, 2]), "valid/loss": rows([2]), gone: rows([1]) };
  const made = withFiner(coarse, fine);
  expect([made["train/loss"].stride, [...stepOf(made["train/loss"])]]).toEqual([1, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]]);
  expect([made["valid/loss"] === coarse["valid/loss"], made.gone, withFiner(coarse, null) === coarse]).toEqual([true, undefined, true]);
});

test("the page asks for the steps of a part, and only where its rows stand for several", async () => {
  const asked = [], store = new Store({ listen() {}, ask: async ({ id, ...what }) => { asked.push(what); store.hear({ re: id, status: "applied", curves: [{ name: "train/loss", stride: 1, from: 0 }] }, [rows([9]).rows]); } });
  const found = await finerOf(store, { "train/loss": rows([4, 3, 2, 1], 4) }, stepOf, [9, 11]);
  expect([asked, found]).toEqual([[{ ask: "span", first: 0, last: 162 }], { "train/loss": { stride: 1, rows: rows([9]).rows } }]);
  expect([await finerOf(store, { lr: rows([1, 2]) }, stepOf, [1, 2]), await finerOf(store, {}, stepOf, [1, 2]), asked.length]).toEqual([null, null, 1]);
  expect(stepsIn(rows([1, 2, 3], 4), (curve) => column(curve, "samples"), [-5, 100])).toEqual({ first: 0, last: 162 });
  expect(stepsIn(rows(Array.from({ length: 200 }, () => 1), 4), stepOf, [401, 403])).toEqual({ first: 250, last: 554 });  // a mean at the edge has both its sides
});

test("a zoom draws the part alone, then its finer rows; a double click, or a rewind, draws all again", async () => {
  const asked = [], drawn = [], heard = {}, link = { listen() {} }, store = new Store(link), box = document.body.appendChild(document.createElement("div"));
  link.plotly = async () => ({ Plots: { resize() {} }, react: (node, data, shape) => {
    node.on ??= (name, act) => { heard[name] = (change) => { Object.assign(node.layout.xaxis, change.now); act(change); }; };
    Object.assign(node, { data, layout: node.layout ?? { xaxis: { autorange: true } } });
    drawn.push([...data.find(({ name }) => name === "train/loss").x]);
    expect(shape.uirevision).toBe("step");  // what was chosen stays
  } });
  link.ask = async ({ id, ask, first, last }) => {
    if (ask !== "span") return;
    asked.push([first, last]);
    store.hear({ re: id, status: "applied", curves: [{ name: "train/loss", stride: 1, from: 0 }] }, [rows([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]).rows]);
  };
  const start = () => store.hear({ v: 1, view: { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} }, curves: [{ name: "train/loss", stride: 4, from: 0 }] }, [rows([5, 4, 3, 2, 1], 4).rows]);
  start();
  render(html`<${Panel} store=${store} part="plots" />`, box);
  await until(() => expect(drawn.at(-1)).toEqual([4, 8, 12, 16, 20]));
  heard.plotly_relayout({ "xaxis.range[0]": 9, now: { range: [9, 11], autorange: false } });
  await until(() => expect(drawn.at(-1)).toEqual([9, 10, 11]));
  expect(asked).toEqual([[0, 162]]);
  heard.plotly_relayout({ autosize: true });  // the page has another width
  heard.plotly_relayout({ "xaxis.autorange": true, now: { autorange: true } });
  await until(() => expect(drawn.at(-1)).toEqual([4, 8, 12, 16, 20]));
  const press = (type) => box.querySelector(".chart").dispatchEvent(new Event(type, { bubbles: true })), before = drawn.length;
  press("pointerdown");
  store.hear({ curves: [{ name: "train/loss", stride: 4, from: 5 }] }, [rows([1], 4).rows]);
  await new Promise((done) => setTimeout(done, 700));  // longer than from one drawing to the next
  expect(drawn.length).toBe(before);  // a button is held
  press("pointerup");
  await until(() => expect(drawn.length).toBe(before + 1));
  heard.plotly_relayout({ "xaxis2.range": 1, now: { range: [9, 11], autorange: false } });
  await until(() => expect(drawn.at(-1)).toEqual([9, 10, 11]));
  store.hear({ again: true, curves: [{ name: "train/loss", stride: 4, from: 0 }] }, [rows([5, 4], 4).rows]);
  await until(() => expect(drawn.at(-1)).toEqual([4, 8]));
  render(null, box);
});

test("outliers can be left out of the scale, and triangles mark them", () => {
  const values = Array.from({ length: 200 }, (_, at) => 1 + (at % 10) / 10), drawn = (some) => traces({ "train/loss": rows(some) }, { window: 1 });
  values[50] = 1e6;
  values[120] = -5000;
  const range = rangeWithout(drawn(values), "y", false), [marks] = beyond(drawn(values), "y", range, false);
  expect([range[0] > 0.5, range[1] < 2.5]).toEqual([true, true]);
  expect([marks.x, marks.y, marks.customdata, marks.marker.symbol]).toEqual([[51, 121], [range[1], range[0]], [1e6, -5000], ["triangle-up", "triangle-down"]]);
  const powers = rangeWithout(drawn(values), "y", true), [up] = beyond(drawn(values), "y", powers, true);
  expect([powers[1] < 0.5, up.x, up.y[0].toFixed(6)]).toEqual([true, [51], (10 ** powers[1]).toFixed(6)]);  // what is below 0 has no place
  expect([rangeWithout([], "y", false), rangeWithout(drawn([2, 2]), "y", false), beyond(drawn([1, 2]), "y", [0, 3], false)]).toEqual([null, null, []]);
  const shape = layout([], {}), found = leaveOut(drawn(values), shape, { yaxis: [0, 1e7] });
  expect([shape.yaxis.range, shape.yaxis99.range, found.map(({ x }) => x)]).toEqual([[0, 1e7], [0, 1], [[121]]]);  // a person has zoomed
});

test("a button leaves outliers out", async () => {
  const shapes = [], link = { listen() {}, ask: async () => {}, plotly: async () => ({ Plots: { resize() {} }, react: (node, data, shape) => { node.on ??= () => {}; Object.assign(node, { data }); shapes.push(shape.yaxis.range); } }) };
  const store = new Store(link), box = document.body.appendChild(document.createElement("div")), values = Array.from({ length: 100 }, (_, at) => (at === 40 ? 50 : 1 + (at % 7) / 7));
  store.hear({ v: 1, view: { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} }, curves: [{ name: "train/loss", stride: 1, from: 0 }] }, [rows(values).rows]);
  render(html`<${Panel} store=${store} part="plots" />`, box);
  const button = () => [...box.querySelectorAll("button")].find((each) => each.textContent === "outliers");
  await until(() => expect([shapes.at(-1), shapes.length]).toEqual([undefined, 1]));
  expect(button().getAttribute("aria-pressed")).toBe("true");
  button().click();
  await until(() => expect(shapes.at(-1)?.[1]).toBeLessThan(5));
  expect(button().getAttribute("aria-pressed")).toBe("false");
  render(null, box);
});

test("smoothing, scale, axis and outliers are kept for a reload", async () => {
  const choices = { smooth: "100", y: "linear", x: "epoch" };
  const open = () => {
    const store = new Store({ listen() {}, plotly: () => new Promise(() => {}) }), box = document.body.appendChild(document.createElement("div"));
    store.hear({ v: 1, view: { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} } }, []);
    render(html`<${Panel} store=${store} part="plots" />`, box);
    return box;
  };
  const of = (box) => [...Object.keys(choices).map((name) => box.querySelector(`[aria-label=${name}]`).value), outliersOf(box).getAttribute("aria-pressed")];
  const outliersOf = (box) => [...box.querySelectorAll("button.chip")].find((each) => each.textContent === "outliers");
  const first = open();
  expect(of(first)).toEqual(["33", "auto", "step", "true"]);
  for (const [name, value] of Object.entries(choices)) {
    const list = first.querySelector(`[aria-label=${name}]`);
    list.value = value;
    list.dispatchEvent(new Event("change", { bubbles: true }));
  }
  outliersOf(first).click();
  await until(() => expect(of(first)).toEqual([...Object.values(choices), "false"]));
  render(null, first);
  const again = open();
  expect(of(again)).toEqual([...Object.values(choices), "false"]);
  render(null, again);
  sessionStorage.setItem("trainer_nb smooth", "7");
  expect(of(open())[0]).toBe("33");
});

test("a chart that left the page before plotly came does nothing", async () => {
  let come, asked = false;
  const touched = [], plotly = new Promise((done) => { come = () => done({ react: () => touched.push("react") }); });
  const link = { listen() {}, ask: async () => {}, plotly: () => { asked = true; return plotly; } }, store = new Store(link), box = document.body.appendChild(document.createElement("div"));
  vi.stubGlobal("ResizeObserver", class { observe(node) { touched.push(node); } disconnect() {} });
  store.hear({ v: 1, view: { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} }, curves: [{ name: "train/loss", stride: 1, from: 0 }] }, [rows([2, 1]).rows]);
  render(html`<${Panel} store=${store} part="plots" />`, box);
  await until(() => expect(asked).toBe(true));
  render(null, box);
  come();
  await plotly;
  vi.unstubAllGlobals();
  expect(touched).toEqual([]);
});
