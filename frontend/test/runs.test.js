import { render } from "preact";
import { html } from "htm/preact";
import { afterEach, beforeEach, expect, test } from "vitest";
import { DASHES, RUN_INKS, allOf, behindOf, dashOf, inkOf, lineOf, stepsOf } from "../src/behind.js";
import { layout, smallOf, traces, withOthers } from "../src/chart.js";
import { Panel } from "../src/panel.js";
import { columnsOf, fits, groupsOf, runsTitle, scatterLayout, scatterTraces, sortedRows, usualChoice } from "../src/runs.js";
import { Store } from "../src/store.js";
import { until } from "./until.js";

const row = (name, more) => ({ name, shown: false, mine: true, like: true, added: false, state: "finished", steps: 100, seconds: 61, values: {}, settings: {}, ...more });
const RUNS = {
  rows: {
    0: row("net · lr 0.1", { mine: false, shown: true, state: "running", steps: 40, values: { "train/loss": { last: 0.5 } }, settings: { lr: 0.1, sched: "none" } }),
    1: row("<b>first</b>", { values: { "train/loss": { last: 0.25 }, "valid/loss": { last: 0.4, best: 0.3, at: 60 } }, settings: { lr: 0.001, sched: "cosine" }, by_hand: { first: "step 3: lr", count: 3 } }),
    2: row("second", { values: { "train/loss": { last: "nan" }, "valid/loss": { last: 0.2, best: 0.2, at: 100 } }, settings: { lr: 0.01, sched: "none" } }),
    5: row("exp5", { like: false, mine: false, added: true, state: "stopped", values: { "valid/loss": { last: 7, best: 7, at: 5 } }, settings: { lr: 0.1 } }),
  },
  records: ["train/loss", "valid/loss"], settings: ["lr", "sched"], dropped: 0, can_add: true,
};
const VIEW = { may_steer: true, run: { name: "net", description: "cpu" }, state: { name: "running" }, place: { step: 40 }, numbers: {}, tunables: {}, values: {}, commands: { tune: { at: 0 } }, points: {}, hooks: {}, journal: { count: 0, entries: {} }, drawn: { runs: {}, count: 3, earlier: 2 } };

// A page with its tab Runs open; it notes what it asks, and answers as `answers` has it.
function shown({ runs = RUNS, ...change } = {}, answer = { status: "applied" }, part = undefined) {
  sessionStorage.setItem("trainer_nb tab", '"runs"');
  const asked = [], opened = [], link = { listen() {}, plotly: () => new Promise(() => {}) }, store = new Store(link), box = document.body.appendChild(document.createElement("div"));
  link.ask = async (each) => {
    if (each.ask === "open") return void opened.push(...each.tabs);
    const { id, ...what } = each;
    asked.push(what);
    if (answer) store.hear({ re: id, ...answer }, []);
  };
  store.hear({ v: 1, view: { ...VIEW, runs, ...change } }, []);
  render(html`<${Panel} ...${{ store, part }} />`, box);
  const all = (selector) => [...box.querySelectorAll(selector)];
  return { asked, opened, store, box, all, find: (selector) => box.querySelector(selector), texts: (selector) => all(selector).map((each) => each.textContent.replace(/\s+/g, " ").trim()), button: (text) => all("button").find((each) => each.textContent === text) };
}

const order = (rows) => rows.map(({ number }) => number);
const type = (field, text) => { field.value = text; field.dispatchEvent(new Event("input", { bubbles: true })); };
const key = (node, name) => node.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));

beforeEach(() => sessionStorage.clear());
afterEach(() => document.body.replaceChildren());

test("this run first, then those with its loss, the newest first; or by a column, without a number last", () => {
  expect(order(sortedRows(RUNS.rows))).toEqual([0, 2, 1, 5]);
  const [state, , , train, valid, lr] = columnsOf(RUNS);
  expect(order(sortedRows(RUNS.rows, valid, false))).toEqual([2, 1, 5, 0]);
  expect(order(sortedRows(RUNS.rows, valid, true))).toEqual([5, 1, 2, 0]);
  expect(order(sortedRows(RUNS.rows, train, false))).toEqual([1, 0, 2, 5]);  // "nan" after numbers
  expect(order(sortedRows(RUNS.rows, lr, false))).toEqual([1, 2, 0, 5]);
  expect(order(sortedRows(RUNS.rows, state, false))).toEqual([2, 1, 0, 5]);
});

test("a filter wants each word; groups are in the order of their values", () => {
  const all = sortedRows(RUNS.rows);
  expect(order(all.filter((each) => fits(each, "lr 0.01")))).toEqual([2]);
  expect(order(all.filter((each) => fits(each, "FINISHED cosine")))).toEqual([1]);
  expect(groupsOf(all, "lr").map(({ title, rows }) => [title, order(rows)])).toEqual([["lr 0.001", [1]], ["lr 0.01", [2]], ["lr 0.1", [0, 5]]]);
  expect(groupsOf(all, "sched").map(({ title }) => title)).toEqual(["sched cosine", "sched none", "sched –"]);
  expect(groupsOf(all, "")).toEqual([{ title: "", rows: all }]);
});

test("a point a run: a setting against the best value", () => {
  const rows = sortedRows(RUNS.rows), [points] = scatterTraces(rows, "lr", "valid/loss");
  expect([points.x, points.y, points.text]).toEqual([[0.001, 0.01, 0.1], [0.3, 0.2, 7], ["&lt;b&gt;first&lt;/b&gt;", "second", "exp5"]]);
  expect(points.marker.color).toEqual([1, 2, 5].map(inkOf));
  const drawn = scatterLayout([points], "lr", "valid/loss");
  expect([drawn.xaxis.type, drawn.yaxis.type, drawn.xaxis.ticktext]).toEqual(["log", "log", ["0.001", "0.01", "0.1"]]);
  const [texts] = scatterTraces(rows, "sched", "valid/loss");
  expect([texts.x, scatterLayout([texts], "sched", "valid/loss").xaxis.type]).toEqual([["cosine", "none"], "category"]);
  const [own] = scatterTraces(rows, "lr", "train/loss");
  expect([own.y, own.marker.symbol]).toEqual([[0.25, 0.5], ["circle", "circle-open-dot"]]);
  expect(usualChoice(RUNS)).toEqual({ setting: "lr", record: "valid/loss" });
});

test("names are texts, results have their best value, a run that is hidden is switched on by one message", async () => {
  const { asked, find, texts, box } = shown();
  expect(texts("tbody th")).toEqual(["net · lr 0.1this run", "second", "<b>first</b>", "exp5×"]);
  expect(box.querySelector("tbody b")).toBe(null);
  expect(texts("thead th")).toEqual(["run", "state", "steps", "time", "train/loss", "valid/loss", "lr", "sched", "by hand"]);
  expect(texts("[data-number='1'] td")).toEqual(["finished", "100", "1:01", "0.25", "0.4best 0.3 at 60", "0.001", "cosine", "step 3: lrand 2 more"]);
  find("[data-number='2'] input[role=switch]").click();
  await until(() => expect(asked).toEqual([{ ask: "run", do: "show", number: 2 }]));
  expect(find("[data-number='0'] input")).toBe(null);
  expect(texts("[data-tab=runs]")).toEqual(["Runs 4"]);
  expect(runsTitle({})).toBe("Runs 1");
});

test("the switch of a run stays as it was clicked while there is no answer", async () => {
  const { asked, store, find } = shown({}, null), turned = () => find("[data-number='2'] input[role=switch]");
  turned().click();
  await until(() => expect(asked).toHaveLength(1));
  store.hear({ patch: { runs: { rows: { 1: { name: "another" } } } } }, []);
  await until(() => expect(find("[data-number='1'] .run-name").textContent).toBe("another"));
  expect(turned().checked).toBe(true);
});

test("a name is changed by a double click or F2; Escape leaves it; a refusal is said", async () => {
  const { asked, find, all } = shown({}, { status: "refused", reason: "it is the name of another run" });
  const name = () => find("[data-number='2'] .run-name");
  name().dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
  await until(() => expect(name().tagName).toBe("INPUT"));
  type(name(), "other");
  key(name(), "Escape");
  await until(() => expect(name().tagName).toBe("BUTTON"));
  expect(asked).toEqual([]);
  key(name(), "F2");
  await until(() => expect(name().tagName).toBe("INPUT"));
  type(name(), " best ");
  key(name(), "Enter");
  name().dispatchEvent(new FocusEvent("blur"));  // a field that goes loses the focus
  await until(() => expect(asked).toEqual([{ ask: "run", do: "rename", number: 2, name: "best" }]));
  await until(() => expect(find(".pane [role=status].wrong").textContent).toBe("Not done: it is the name of another run"));
  expect(all(".pane input.run-name")).toEqual([]);
});

test("all are shown at once, and of a filter those that fit", async () => {
  const { asked, find, texts, button } = shown();
  button("Show all").click();
  await until(() => expect(asked).toEqual([{ ask: "run", do: "show" }]));
  type(find("input[type=search]"), "finished");
  await until(() => expect(texts("tbody th").length).toBe(2));
  button("Show all").click();
  await until(() => expect(asked.slice(1)).toEqual([2, 1].map((number) => ({ ask: "run", do: "show", number }))));
  expect(button("Hide all").disabled).toBe(true);
  type(find("input[type=search]"), "nobody");
  await until(() => expect(texts(".pane .quiet")).toContain("No run fits nobody."));
});

test("heads sort, and a third click is the usual order again", async () => {
  const { find, all, texts } = shown(), head = () => all("thead button").find((each) => each.textContent === "lr");
  const numbers = () => all("tr[data-number]").map((each) => each.dataset.number).join("");
  for (const wanted of ["1205", "0521", "0215"]) {
    head().click();
    await until(() => expect(numbers()).toBe(wanted));
  }
  const select = find("select[aria-label='group by']");
  select.value = "sched";
  select.dispatchEvent(new Event("change", { bubbles: true }));
  await until(() => expect(texts("tr.group th")).toEqual(["sched cosine · 1 run", "sched none · 2 runs", "sched – · 1 run"]));
});

test("runs are added by a path where the kernel finds them, and removed; what was dropped is said", async () => {
  const { asked, find, texts } = shown({ runs: { ...RUNS, dropped: 2 } });
  expect(texts(".pane .quiet").at(-1)).toBe("2 older runs were dropped: a kernel keeps at most 50 runs and 200 MB of their curves.");
  type(find("form.add input"), "runs/*");
  find("form.add button").click();
  await until(() => expect(asked).toEqual([{ ask: "add", path: "runs/*" }]));
  find("button.away").click();
  await until(() => expect(asked.at(-1)).toEqual({ ask: "run", do: "remove", number: 5 }));
  expect(shown({ runs: { ...RUNS, can_add: false } }).find("form.add")).toBe(null);
});

test("who may only look sees no runs beside", () => {
  expect(shown({ may_steer: false }).find("[data-tab=runs]")).toBe(null);
  expect(shown().find("[data-tab=runs]")).not.toBe(null);
});

const COLUMNS = 9;
const curve = (values, stride = 1, every = 1) => ({ stride, rows: Float32Array.from(values.flatMap((value, at) => [every * (at + 1), 0, value, value, value, stride, at, at, at])) });

test("curves of other runs are told from the own ones, and go when they are void", () => {
  const store = new Store({ listen() {}, ask: async () => {} }), rows = curve([1, 2]).rows, head = (name, more) => ({ name, stride: 1, from: 0, ...more });
  store.hear({ v: 1, view: { ...VIEW } }, []);
  store.hear({ curves: [head("train/loss"), head("train/loss#3", { run: 3 }), head("odd#4#12", { run: 12 }), head("own#4")] }, [rows, rows, rows, rows]);
  expect([Object.keys(store.curves), Object.keys(store.others), Object.keys(store.others[12])]).toEqual([["train/loss", "own#4"], ["3", "12"], ["odd#4"]]);
  store.hear({ curves: [{ ...head("train/loss#3", { run: 3 }), from: 2 }] }, [curve([3]).rows]);
  expect(store.others[3]["train/loss"].rows.length).toBe(3 * COLUMNS);
  store.hear({ again: true }, []);
  expect([store.curves, Object.keys(store.others)]).toEqual([{}, ["3", "12"]]);
  store.hear({ void: [3], curves: [head("train/loss#3", { run: 3 })] }, [rows]);
  expect(store.others[3]["train/loss"].rows.length).toBe(2 * COLUMNS);
  store.hear({ void: [3, 12] }, []);
  expect(store.others).toEqual({});
  store.hear({ v: 1, view: {} }, []);
  expect(store.others).toEqual({});
});

test("other runs are drawn behind, thinner, in the ink and dash of their number, to their own end", () => {
  const others = [{ number: "3", name: "<i>third</i>", curves: { "train/loss": curve([3, 2]), "valid/loss": curve([9]), "train/loss\n0": curve([50]), "grad_norm": curve([1, 1]) } }, { number: "12", name: "twelfth", curves: { "train/loss": curve([4]) } }];
  const own = { "train/loss": curve([1, 1, 1, 1]), lr: curve([0.1]) }, found = traces(own, { window: 1, others });
  expect(found.map(({ name }) => name)).toEqual(["&lt;i&gt;third&lt;/i&gt; · train/loss", "&lt;i&gt;third&lt;/i&gt; · valid/loss", "&lt;i&gt;third&lt;/i&gt; · train/loss", "&lt;i&gt;third&lt;/i&gt;", "twelfth", "train/loss", "lr"]);
  const [line, points, branch, norm, twelfth, mine] = found;
  expect([line.line, [...line.x], mine.line.width]).toEqual([{ color: inkOf(3), width: 1.25, dash: "solid" }, [1, 2], 2.25]);
  expect([points.mode, points.yaxis, norm.yaxis, found.at(-1).yaxis]).toEqual(["lines+markers", "y", "y3", "y2"]);
  expect([branch.hoverinfo, branch.line.dash, [...branch.y]]).toEqual(["skip", "dot", [50]]);  // one that got worse, whole
  expect([twelfth.line.dash, inkOf(12), inkOf(1)]).toEqual(["dash", RUN_INKS[3], RUN_INKS[2]]);
  expect(traces(own, { others, hidden: new Set(["#3", "#12"]) }).map(({ name }) => name).includes("twelfth")).toBe(false);
  expect(traces(own, { others, hidden: new Set(["train/loss"]) }).map(({ name }) => name)).toEqual(["&lt;i&gt;third&lt;/i&gt; · valid/loss", "&lt;i&gt;third&lt;/i&gt;", "lr"]);
  expect(Object.keys(layout(smallOf(withOthers(own, others)))).filter((each) => each.startsWith("yaxis"))).toEqual(["yaxis", "yaxis99", "yaxis2", "yaxis3"]);
  expect(new Set([...Array(50).keys()].map((number) => inkOf(number + 1) + dashOf(number + 1))).size).toBe(50);
  expect(DASHES.map((_, at) => lineOf(10 * at + 1).borderTopStyle)).toEqual(["solid", "dashed", "dotted", "dashed", "dashed"]);
});

test("a run whose points are means of 50 steps is smoothed over as many steps", () => {
  const values = Array.from({ length: 200 }, (_, at) => (at % 2 ? 1 : -1)), others = (every) => [{ number: 1, name: "long", curves: { "train/loss": curve(values, 1, every) } }];
  const middle = (every) => Math.abs(traces({}, { window: 100, others: others(every) })[0].y[100]);
  expect(stepsOf(curve(values, 1, 50))).toBe(50);
  expect([middle(1) < 0.02, middle(50) > 0.3]).toEqual([true, true]);
});

test("the legend has the names, a click hides a run on this page; the last run with this loss comes by one click", async () => {
  const { asked, store, texts, find, button } = shown();
  expect(find("button.chip").textContent).toBe("earlier run");
  find("button.chip").click();
  await until(() => expect(asked).toEqual([{ ask: "run", do: "show", number: 2 }]));
  store.hear({ patch: { drawn: { runs: { 2: { name: "second" } } } } }, []);
  await until(() => expect(texts(".runs-legend button")).toEqual(["second"]));
  expect(behindOf(store)).toEqual([{ number: "2", name: "second", curves: {} }]);
  find(".runs-legend button").click();
  await until(() => expect(find(".runs-legend button").getAttribute("aria-pressed")).toBe("false"));
  expect(asked.length).toBe(1);
  store.hear({ patch: { drawn: { runs: Object.fromEntries(Array.from({ length: 15 }, (_, at) => [at + 1, { name: `run ${at}` }])) } } }, []);
  await until(() => expect(texts(".runs-legend").at(-1)).toContain("and 3 more in the table of runs"));
  button("15 other runs").click();
  await until(() => expect(asked.at(-1)).toEqual({ ask: "run", do: "hide" }));
});

test("many runs are drawn with few points, to their last one, and what was made is kept", () => {
  const values = Array.from({ length: 1000 }, (_, at) => at), others = Array.from({ length: 30 }, (_, at) => ({ number: at + 1, name: `run ${at}`, curves: { "train/loss": curve(values), "valid/loss": curve(values) } }));
  const found = traces({}, { others });
  expect(found.reduce((sum, { x }) => sum + x.length, 0)).toBeLessThanOrEqual(20_000);
  expect(found.every(({ x, y }) => x.at(-1) === 1000 && x.length === y.length && x.length > 60)).toBe(true);
  expect(found[0].y.at(-1)).toBeCloseTo(999, 6);
  expect(traces({}, { others })[0].x).toBe(found[0].x);
  expect(traces({}, { others, axis: "epoch" })[0].x.at(-1)).toBe(999);
});

const several = (change) => shown({ drawn: { runs: { 1: { name: "<b>first</b>" }, 5: { name: "exp5" } }, count: 3 }, ...change }, undefined, "runs");

test("the part of several runs is their curves and their table, without the head and controls of one", async () => {
  const { box, opened, find, texts } = several();
  await until(() => expect(opened).toEqual(["runs"]));
  expect([find(".tnb-head"), find("[aria-label=Controls]"), find(".tunables"), find(".tag"), find("tr.own"), find("button[title*=tab]")]).toEqual(Array(6).fill(null));
  expect(texts(".runs-legend button")).toEqual(["net · lr 0.1", "<b>first</b>", "exp5"]);
  expect(texts("tr[data-number] .run-name")).toEqual(["net · lr 0.1", "<b>first</b>", "second", "exp5"]);  // as they were given
  expect(box.querySelector("section.tnb").getAttribute("aria-label")).toBe("Training runs");
});

test("the run of the feed looks like the others there, and its switch hides it on this page alone", async () => {
  const { asked, store, all, find, texts, button } = several(), own = () => all("tr[data-number='0'] input[role=switch]")[0];
  store.hear({ curves: [{ name: "train/loss", stride: 1, from: 0 }, { name: "train/loss#1", run: 1, stride: 1, from: 0 }] }, [curve([3, 2]).rows, curve([5]).rows]);
  const drawn = traces({}, { others: allOf(store), front: true, window: 1 });
  expect(drawn.map(({ name, line, opacity }) => [name, line.color, line.width, opacity])).toEqual([["net · lr 0.1", RUN_INKS[1], 2, 1], ["<b>first</b>", RUN_INKS[2], 2, 1]].map(([name, ...more]) => [name.replaceAll("<", "&lt;").replaceAll(">", "&gt;"), ...more]));
  expect([own().checked, find("tr[data-number='0'] s").style.borderColor]).toEqual([true, lineOf(0).borderColor]);
  own().click();
  await until(() => expect(texts(".runs-legend button")).toEqual(["<b>first</b>", "exp5"]));
  expect([own().checked, asked]).toEqual([false, []]);
  expect(allOf(store).map(({ number }) => number)).toEqual(["1", "5"]);
  button("Show all").click();
  await until(() => expect(own().checked).toBe(true));
  expect(asked).toEqual([{ ask: "run", do: "show" }]);
  button("Hide all").click();
  await until(() => expect(own().checked).toBe(false));
});

test("no point of several runs has the ring of one that is looked at", () => {
  const [{ marker }] = scatterTraces(sortedRows(RUNS.rows, undefined, false, false), "lr", "train/loss", false);
  expect([new Set(marker.symbol), new Set(marker.size)]).toEqual([new Set(["circle"]), new Set([9])]);
});

test("the part of several runs says that its kernel has ended", async () => {
  const { store, find } = several();
  store.hear({ cut: "The kernel that drew this panel has ended." }, []);
  await until(() => expect(find(".message").textContent).toBe("The kernel that drew this panel has ended. What stands here is old."));
});
