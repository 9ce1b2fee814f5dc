import { render } from "preact";
import { html } from "htm/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { fewOf, pointWords, usualOf } from "../src/controls.js";
import { hooksTitle, partsOf } from "../src/hooks.js";
import { codeFor } from "../src/inspect.js";
import { change, finite, lossRange, planTraces, read, searchLayout, searchTraces } from "../src/lr.js";
import { Panel } from "../src/panel.js";
import { Store } from "../src/store.js";
import { pathOf, wordsOf } from "../src/system.js";
import { columnsOf, markdown, sorted } from "../src/table.js";
import { TABS } from "../src/tabs.js";
import { alertOf, colour, duration, epochAfter, epochOf, even, message, phase, standing } from "../src/words.js";
import { until } from "./until.js";

const TABLE = {
  rows: {
    16: { epoch: 1, "train/loss": 1.5, "valid/loss": "nan", seconds: 5 }, 32: { epoch: 2, "train/loss": 0.9, "valid/loss": 0.8, "valid/a|b": 0.25, seconds: 70 },
    48: { epoch: 2.5, "valid/loss": 0.7, "valid/a|b": "inf", seconds: 3700 },
  },
  order: ["step", "epoch", "train/loss", "valid/loss", "valid/a|b", "seconds"], best: { "valid/loss": 48, "valid/a|b": 32 },
};
const SEARCH = {
  rates: [1e-6, 1e-4, 1e-2, 1, 10], losses: [2, 1.9, 1.5, "nan", 90], smoothed: [2, 1.95, 1.7, 5, 60], planned: 100, ended: "diverged", reason: "the valley it is", use: ["lr_scale", 20],
  suggestions: { valley: { rate: 0.01, why: "midpoint" }, steepest: { rate: 0.0101, why: "falls fastest" }, slide: { rate: 30, why: "beyond" } },
};
const VIEW = {
  may_steer: true, run: { name: "net", description: "cpu", panes: ["hooks", "inspect", "alerts"], loaders: ["valid"], can_rewind: true }, state: { name: "running" },
  place: { step: 48, epoch: 2, epochs: 4 }, numbers: { "valid/loss": { value: 0.7, of: 1, step: 48, count: 3 }, "train/loss": { value: 1, of: 9, step: 48 } },
  tunables: {}, values: { "slow.enabled": { value: true }, "slow.order": { value: 0 } },
  commands: {
    tune: { at: 0 }, note: { at: 1 }, rewind: { at: 2, buttons: { Rewind: { at: 0, place: "tools" } } },
    lr_find: { at: 3, doc: "Look for a learning rate", values: { start_lr: { at: 0, kind: "float", doc: "the lowest rate" }, num_steps: { at: 1, kind: "int" }, optimizer: { at: 2, kind: "str" } } },
  },
  points: { slow: { label: "Slow", points: ["after_step"], own: true }, other: { label: "Other", points: [] } },
  hooks: { slow: { at: 0, order: 0, enabled: true, calls: 1234567, seconds: 2.5 }, other: { at: 1, order: 5, enabled: false } },
  journal: { count: 2, entries: { 1: { step: 3, epoch: 0, kind: "tune", what: "lr", change: "0.1 → 0.2", source: "panel", undone: true }, 2: { step: 5, epoch: 1, batch: 1, kind: "note", what: "note", change: "<i>seen</i>", source: "code" } } },
  alerts: {
    1: { title: "Spike", step: 10, seen: "The loss rose.", advice: "Lower `lr`.", ended: 20, entries: 0 },
    2: { title: "Slow hook", step: 40, seen: "The hook 'slow' takes 66%.", advice: "Switch it `off`.", entries: 2 },
  },
};

// A panel whose run says what is open at once.
function shown(change = {}, sections = {}, plotly = new Promise(() => {})) {
  const asked = [], opened = [], link = { listen() {}, plotly: () => plotly };
  const store = new Store(link), box = document.body.appendChild(document.createElement("div"));
  link.ask = async (each) => {
    if (each.ask !== "open") return void asked.push(each);
    opened.push(each.tabs);
    store.hear({ patch: Object.fromEntries(Object.keys(sections).map((name) => [name, each.tabs.includes(name) ? sections[name] : null])) }, []);
  };
  store.hear({ v: 1, view: { ...VIEW, ...change } }, []);
  render(html`<${Panel} store=${store} />`, box);
  const find = (selector) => box.querySelector(selector), all = (selector) => [...box.querySelectorAll(selector)];
  return { asked, opened, store, box, find, all, pane: () => find("[role=tabpanel]"), tab: (name) => find(`[data-tab=${name}]`), texts: (selector) => all(selector).map((each) => each.textContent.replace(/\s+/g, " ").trim()) };
}

const answer = (store, asked, more) => store.hear({ re: asked.at(-1).id, status: "applied", ...more }, []);
const type = (field, text) => {
  field.value = text;
  for (const each of ["input", "change"]) field.dispatchEvent(new Event(each, { bubbles: true }));
};

beforeEach(() => sessionStorage.clear());
afterEach(() => document.body.replaceChildren());

test("tabs have counts in their titles, and alerts only where the run has them", () => {
  expect(shown().texts("[role=tab]")).toEqual(["Table 3", "Hooks 2", "Journal 2", "Inspect", "LR", "Runs 1", "Alerts 2"]);
  expect(shown({ run: { name: "net", panes: [] } }).texts("[role=tab]").at(-1)).toBe("Runs 1");
  expect(shown({ state: { name: "paused" } }).texts("[role=tab]")[3]).toBe("Inspect · step 48");
  const ended = { state: { name: "error" }, place: { step: 7 }, hooks: { a: { failure: { step: 7 } }, b: { failure: { step: 3 } } } };
  expect(hooksTitle(ended)).toBe("Hooks 2 · 1 error");  // that of b is an earlier one
});

test("a tab is open while it is chosen: its section is sent, and kept for a reload", async () => {
  const { opened, tab, pane } = shown();
  await until(() => expect(opened).toEqual([["table"]]));
  tab("hooks").click();
  await until(() => expect(opened).toEqual([["table"], ["times"]]));
  expect(pane().getAttribute("aria-labelledby")).toBe(tab("hooks").id);
  expect(tab("hooks").getAttribute("aria-controls")).toBe(pane().id);
  tab("alerts").click();
  await until(() => expect(opened.at(-1)).toEqual([]));
  tab("journal").click();
  await until(() => expect(opened.at(-1)).toEqual(["entries"]));
  const again = shown();
  expect(again.tab("journal").getAttribute("aria-selected")).toBe("true");
});

test("what is open is said again after a connection that was cut, and the chooser opens one more", async () => {
  const { opened, store, find } = shown();
  await until(() => expect(opened).toHaveLength(1));
  store.hear({ cut: "The server has ended." }, []);
  store.hear({ v: 1, view: VIEW }, []);
  await until(() => expect(opened).toEqual([["table"], ["table"]]));
  find("button[name=rewind]").click();
  await until(() => expect(opened.at(-1)).toEqual(["table", "rewind"]));
});

test("keys move between tabs, and one is in the tab order", async () => {
  const { all, tab } = shown(), press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  tab("table").focus();
  for (const [key, name] of [["ArrowRight", "hooks"], ["End", "alerts"], ["ArrowRight", "table"], ["ArrowLeft", "alerts"], ["Home", "table"]]) {
    press(key);
    await until(() => expect(tab(name).getAttribute("aria-selected")).toBe("true"));
    expect(document.activeElement).toBe(tab(name));
    expect(all("[role=tab]").filter((each) => each.tabIndex === 0)).toEqual([tab(name)]);
  }
});

test("a section that two parts have open is closed with the last one", async () => {
  const opened = [], store = new Store({ listen() {}, ask: async ({ tabs }) => { opened.push(tabs); } });
  store.hear({ v: 1, view: {} }, []);
  const one = store.open("lr"), other = store.open("lr");
  await until(() => expect(opened).toEqual([["lr"]]));
  one();
  one();  // does nothing more
  store.open("table");
  await until(() => expect(opened.at(-1)).toEqual(["lr", "table"]));
  other();
  await until(() => expect(opened).toEqual([["lr"], ["lr", "table"], ["table"]]));
});

test("a panel that goes says nothing at once: its widget may be about to be closed", async () => {
  vi.useFakeTimers();
  try {
    const opened = [], store = new Store({ listen() {}, ask: async ({ tabs }) => { opened.push(tabs); } });
    store.hear({ v: 1, view: {} }, []);
    const close = store.open("table");
    await vi.advanceTimersByTimeAsync(1);
    close();
    await vi.advanceTimersByTimeAsync(900);
    expect(opened).toEqual([["table"]]);
    await vi.advanceTimersByTimeAsync(200);
    expect(opened).toEqual([["table"], []]);
  } finally { vi.useRealTimers(); }
});

test("what was closed is said after a whole view of another greeting, and after a message that failed", async () => {
  vi.useFakeTimers();
  try {
    let fails = false;
    const opened = [], store = new Store({ listen() {}, ask: async ({ tabs }) => { if (fails) throw new Error("no kernel"); opened.push(tabs); } });
    store.hear({ v: 1, view: {} }, []);
    const close = store.open("times");
    await vi.advanceTimersByTimeAsync(1);
    close();
    store.hear({ v: 1, view: {} }, []);
    await vi.advanceTimersByTimeAsync(1500);
    expect(opened).toEqual([["times"], []]);
    fails = true;
    store.open("looks")();
    await vi.advanceTimersByTimeAsync(1);
    fails = false;
    store.open("looks");
    await vi.advanceTimersByTimeAsync(1);
    expect(opened.at(-1)).toEqual(["looks"]);
  } finally { vi.useRealTimers(); }
});

test("messages of what is open do not overtake each other", async () => {
  const opened = [], waits = [], store = new Store({ listen() {}, ask: ({ tabs }) => new Promise((done) => { opened.push(tabs); waits.push(done); }) });
  store.hear({ v: 1, view: {} }, []);
  const close = store.open("table");
  await until(() => expect(opened).toEqual([["table"]]));
  close();
  store.open("lr");
  await new Promise((done) => setTimeout(done, 5));
  expect(opened).toHaveLength(1);  // the first is under way
  waits[0]();
  await until(() => expect(opened).toEqual([["table"], ["lr"]]));
});

test("Table: the newest last, a click on a head sorts, the best of each column is bold", async () => {
  const { find, texts, all } = shown({}, { table: TABLE }), rows = () => texts("tbody th");
  await until(() => expect(texts("[role=tabpanel] thead th")).toEqual(["step", "epoch", "train/loss", "valid/loss", "valid/a|b", "time", "+ time"]));
  expect(all("[role=tabpanel] tbody tr").map((each) => [...each.children].map(({ textContent }) => textContent))).toEqual([
    ["16", "1", "1.5000", "nan", "–", "0:05", "5.0 s"], ["32", "2", "0.9000", "0.8000", "0.2500", "1:10", "1:05"], ["48", "2.5", "–", "0.7000", "inf", "1:01:40", "1:00:30"]]);
  expect(find("thead th").getAttribute("aria-sort")).toBe("ascending");
  expect(texts("td.best")).toEqual(["0.2500", "0.7000"]);
  find("thead th:nth-child(4) button").click();
  await until(() => expect(find("thead th:nth-child(4)").getAttribute("aria-sort")).toBe("descending"));
  expect(rows()).toEqual(["32", "48", "16"]);  // what is no number comes last
  find("thead th:nth-child(4) button").click();
  await until(() => expect(rows()).toEqual(["48", "32", "16"]));
});

test("Table: the last rows of many, and all on demand", async () => {
  const steps = Array.from({ length: 70 }, (_, at) => at + 1), table = { rows: Object.fromEntries(steps.map((step) => [step, { "valid/loss": step }])), order: ["step", "valid/loss"] };
  const { box, all, find } = shown({}, { table }), button = () => [...box.querySelectorAll("button")].find(({ textContent }) => textContent.startsWith("Show"));
  await until(() => expect(all("tbody tr")).toHaveLength(20));
  expect(find("tbody tr th").textContent).toBe("51");
  button().click();
  await until(() => expect(all("tbody tr")).toHaveLength(70));
});

test("Table: copied as Markdown, or selected where nothing may be copied", async () => {
  const write = vi.spyOn(navigator.clipboard, "writeText").mockResolvedValueOnce().mockRejectedValueOnce(new Error("no https"));
  const { find } = shown({}, { table: TABLE });
  await until(() => expect(find("button.copy")).not.toBe(null));
  find("button.copy").click();
  await until(() => expect(find(".pane [role=status]").textContent).toBe("Copied"));
  const lines = write.mock.calls[0][0].split("\n");
  expect(lines[0]).toBe("| step | epoch | train/loss | valid/loss | valid/a\\|b | time | + time |");
  expect(lines[2]).toBe("| 16 | 1 | 1.5000 | nan | – | 0:05 | 5.0 s |");
  find("button.copy").click();
  await until(() => expect(find("textarea").value).toBe(lines.join("\n")));
  expect(find(".pane [role=status]").textContent).toBe("Press Ctrl+C");
});

test("Table: titles say which weights were evaluated, and an empty table says what it waits for", () => {
  expect(columnsOf(TABLE, { averaged: ["valid"] }).map(({ title }) => title).slice(2, 4)).toEqual(["train/loss", "valid/loss (average)"]);
  expect(sorted({ values: [1, null, 3, "nan", 2] }, true)).toEqual([2, 4, 0, 1, 3]);
  expect(markdown(columnsOf(TABLE), []).split("\n")).toHaveLength(2);
  expect(shown({ numbers: {} }).pane().textContent).toBe("The first row comes with the first evaluation.");
  expect(shown({ numbers: {}, run: { ...VIEW.run, loaders: [] } }).pane().textContent).toBe("This run has no valid_dl: nothing is evaluated.");
});

test("Rewind proposes the last state before this one; of a run that broke, the best before it did", () => {
  const points = [{ step: 40 }, { step: 30 }, { step: 20, best: true }, { step: 0 }], place = { step: 40 }, broke = (step) => ({ place, numbers: { "train/loss": { bad_since: step } } }), proposed = (...given) => usualOf(points, ...given)?.step;
  expect([proposed({ place }), proposed({ place: { step: 0 } }), proposed({ place }, 25), usualOf([], { place })]).toEqual([30, 40, 20, undefined]);
  expect([broke(35), broke(20), broke(0)].map((view) => proposed(view))).toEqual([20, 0, 0]);
  expect([proposed({ place, alerts: { 1: { kind: "divergence", step: 25 } } }), proposed(broke(35), 31)]).toEqual([20, 30]);  // a click says which
});

test("Rewind: each state with its step, epoch and loss, and which is best", async () => {
  const rewind = [{ step: 0 }, { step: 1000, epoch: 1.5, name: "valid/loss", value: 0.5, measured: 900 }, { step: 2000, epoch: 2, name: "valid/loss", value: 0.4, measured: 2000, best: true }];
  expect(rewind.map(pointWords)).toEqual(["step 0", "step 1,000 · epoch 2 · valid/loss 0.5 at 900", "step 2,000 · epoch 2 · valid/loss 0.4 · best of these"]);
  const { asked, find, texts } = shown({ place: { step: 1500 } }, { rewind });
  find("button[name=rewind]").click();
  await until(() => expect(texts("[aria-label=Rewind] option")).toHaveLength(3));
  expect(find("[aria-label=Rewind] select").value).toBe("1000");
  find("[aria-label=Rewind] button").click();
  expect(asked.at(-1)).toMatchObject({ name: "rewind", values: { step: 1000 } });
});

// As much of plotly as a click needs: `drawn` has the boxes and what is called after a click.
function clickable() {
  const drawn = [], react = (box, traces) => {
    if (!box.data) box.on = (name, hear) => {
      if (name === "plotly_click") drawn.push({ box, click: (x) => hear({ points: [{ x }] }) });
      if (name === "plotly_doubleclick") Object.assign(drawn.at(-1), { doubleclick: hear });
    };
    box.data = traces;
  };
  return [drawn, Promise.resolve({ react, Plots: { resize() {} } })];
}

test("Rewind: of very many states some are listed, and the one that was clicked is among them", async () => {
  const rewind = Array.from({ length: 281 }, (_, at) => ({ step: 10 * at, best: at === 7 || undefined }));
  const points = rewind.toReversed(), few = fewOf(points, 1230).map(({ step }) => step);
  expect(few.slice(0, 20)).toEqual(points.slice(0, 20).map(({ step }) => step));
  expect(few.length).toBeLessThan(70);
  expect(few).toEqual(expect.arrayContaining([70, 1230]));
  expect(Math.max(...few.slice(1).map((step, at) => few[at] - step))).toBeLessThanOrEqual(80);
  expect(fewOf(points.slice(0, 60), 0)).toHaveLength(60);
});

test("Rewind: a click on a curve chooses the last state before it", async () => {
  const [drawn, plotly] = clickable(), { find, texts } = shown({}, { rewind: [{ step: 0 }, { step: 20 }, { step: 40 }] }, plotly);
  await until(() => expect(drawn).toHaveLength(1));
  drawn[0].click(30);
  await until(() => expect(texts("[aria-label=Rewind] option")).toHaveLength(3));
  expect(find("[aria-label=Rewind] select").value).toBe("20");
});

test("Rewind: a double click, which ends a zoom, is no click", async () => {
  const [drawn, plotly] = clickable(), { find } = shown({}, { rewind: [{ step: 0 }, { step: 20 }] }, plotly);
  await until(() => expect(drawn).toHaveLength(1));
  drawn[0].box.layout = { xaxis: { autorange: true } };
  drawn[0].click(30);
  await new Promise((done) => setTimeout(done, 120));
  drawn[0].doubleclick();
  drawn[0].click(30);  // plotly tells of the second one, too
  await new Promise((done) => setTimeout(done, 500));
  expect(find("[aria-label=Rewind]")).toBe(null);
});

test("LR: a click on the curve proposes that rate, until the next search", async () => {
  const [drawn, plotly] = clickable(), { asked, store, tab, texts, find } = shown({}, { lr: { search: SEARCH } }, plotly);
  tab("lr").click();
  await until(() => expect(drawn.filter(({ box }) => box.className === "figure")).toHaveLength(1));
  drawn.find(({ box }) => box.className === "figure").click(0.005);
  await until(() => expect(texts(".rates tr").at(-1)).toBe("Your click on the curve0.005Use"));
  find(".rates tr:last-child button").click();
  expect(asked.at(-1)).toMatchObject({ name: "tune", values: { lr_scale: 0.1 } });
  store.hear({ patch: { lr: { search: { ...SEARCH, planned: 50 } } } }, []);
  await until(() => expect(texts(".rates tr")).toHaveLength(3));
});

test("Hooks: switch, order, whole counts, and where a step's time goes", async () => {
  const times = { steps: 10, seconds: { data: 0.01, forward: 0.02, hooks: 0.07, rest: 0.0001 }, hooks: { slow: 0.05 } };
  const { asked, store, tab, find, texts } = shown({}, { times });
  tab("hooks").click();
  await until(() => expect(texts(".parts span")).toEqual(["data 10 %", "forward 20 %", "hooks 70 %"]));
  expect(texts(".pane p")[0]).toBe("A step takes 10.0 ms · counted in 10 steps");
  const cells = [...find("tr[data-name=slow]").children].map(({ textContent }) => textContent.replace(/\s+/g, " ").trim());
  expect(cells.slice(2)).toEqual(["slow Slow yours", "after_step", "1,234,567", "2.5 s", "0.00", "50 %"]);
  expect([...find("tr[data-name=other]").children].map(({ textContent }) => textContent).slice(4)).toEqual(["–", "–", "–", "off"]);
  find("tr[data-name=other] [role=switch]").click();
  expect(asked.at(-1)).toMatchObject({ name: "tune", values: { "other.enabled": true } });
  const order = find("tr[data-name=slow] input.order");
  type(order, "x");
  await until(() => expect(order.getAttribute("aria-invalid")).toBe("true"));
  expect(order.title).toContain("a whole number");
  type(order, "40");
  expect(asked.at(-1)).toMatchObject({ name: "tune", values: { "slow.order": 40 } });
  answer(store, asked, { status: "refused", reason: "not that one" });
  await until(() => expect(order.title).toBe("not that one"));
  expect(order.value).toBe("40");
  type(order, "7");
  answer(store, asked);
  store.hear({ patch: { values: { "slow.order": { waits: true, pending: 7 } } } }, []);
  await until(() => expect(find("tr[data-name=slow] .waits").textContent).toBe("0 → 7"));
  expect(order.value).toBe("7");
});

test("Hooks: a switch stays as it was clicked until there is an answer, whatever is drawn meanwhile", async () => {
  const { asked, store, tab, find, texts } = shown({});
  tab("hooks").click();
  const turned = () => find("tr[data-name=other] [role=switch]"), calls = (count) => store.hear({ patch: { hooks: { other: { calls: count, seconds: 1 } } } }, []);
  const drawn = (count) => until(() => expect(texts("tr[data-name=other] td")[4]).toBe(String(count)));
  await until(() => expect(turned()).toBeTruthy());
  turned().click();
  calls(1);
  await drawn(1);
  expect(turned().checked).toBe(true);
  answer(store, asked, { status: "refused", reason: "not that one" });
  await until(() => expect(turned().checked).toBe(false));
  turned().click();
  answer(store, asked);
  store.hear({ patch: { hooks: { other: { enabled: true } } } }, []);
  calls(2);
  await drawn(2);
  expect(turned().checked).toBe(true);
});

test("Hooks: one that failed shows its error and its traceback, by cost on demand", async () => {
  const hooks = { ...VIEW.hooks, other: { at: 1, order: 5, enabled: true, calls: 1, seconds: 9, error: "ValueError: <b>", failure: { point: "after_step", step: 7, epoch: 0, batch: 6, traceback: "Traceback\nValueError: <b>" } } };
  const { tab, find, texts, box } = shown({ hooks });
  tab("hooks").click();
  await until(() => expect(texts(".trouble summary")).toEqual(["other.after_step step 7, epoch 1, batch 7"]));
  expect(find(".trouble pre").textContent).toBe("Traceback\nValueError: <b>");
  expect(find("tr[data-name=other] .wrong").textContent).toBe("ValueError: <b>");
  [...box.querySelectorAll("button")].find(({ textContent }) => textContent === "By cost").click();
  await until(() => expect(find(".pane tbody tr").dataset.name).toBe("other"));
});

test("Journal: the newest first, in italics what was undone, epochs from 1, texts of a run as text", async () => {
  const { asked, store, tab, find, texts } = shown();
  tab("journal").click();
  await until(() => expect(texts(".journal ol li")).toEqual([
    "2step 5 · epoch 2 “<i>seen</i>” code", "1step 3 · epoch 1 lr 0.1 → 0.2 panel · undone by a rewind"]));
  expect(find(".journal ol li:last-child").className).toBe("undone");
  const note = find("[aria-label='Note for the journal']");
  note.value = "mine ";
  note.dispatchEvent(new Event("input", { bubbles: true }));
  await until(() => { note.form.requestSubmit(); expect(asked.at(-1)).toMatchObject({ name: "note", values: { text: "mine" } }); });
  answer(store, asked, { status: "refused", reason: "no" });
  await until(() => expect(find(".message").textContent).toContain("refused"));
  expect(note.value.trim()).toBe("mine");
  note.form.requestSubmit();
  answer(store, asked);
  await until(() => expect(note.value).toBe(""));
});

test("Journal: the script is asked for and copied; a refusal is said", async () => {
  const write = vi.spyOn(navigator.clipboard, "writeText").mockResolvedValue(), { asked, store, tab, find, pane } = shown();
  tab("journal").click();
  await until(() => expect(find("button.copy")).not.toBe(null));
  find("button.copy").click();
  expect(asked.at(-1)).toEqual({ ask: "script", id: "1" });
  answer(store, asked, { text: "trainer.fit()", promise: "Replays." });
  await until(() => expect(pane().textContent).toContain("Replays."));
  expect(write).toHaveBeenLastCalledWith("trainer.fit()");
  find("button.copy").click();
  answer(store, asked, { status: "refused", reason: "not now" });
  await until(() => expect(find(".pane [role=status]").textContent).toBe("not now"));
});

test("Journal: all entries on demand, and how many more there are", async () => {
  const entries = Object.fromEntries(Array.from({ length: 30 }, (_, at) => [at + 5, { step: at, epoch: 0, kind: "tune", what: "lr", change: "", source: "code" }]));
  const { tab, all, box, pane } = shown({ journal: { count: 34, entries: {} } }, { entries });
  tab("journal").click();
  await until(() => expect(all(".journal ol li")).toHaveLength(12));
  expect(all(".journal ol .number")[0].textContent).toBe("34");
  [...box.querySelectorAll("button")].find(({ textContent }) => textContent === "Show all 30").click();
  await until(() => expect(all(".journal ol li")).toHaveLength(30));
  expect(pane().textContent).toContain("4 earlier entries are in the script.");
});

test("Inspect: tensors and layers; a run that came to rest without a pause is asked once a step", async () => {
  const inspect = { step: 48, layers_step: 47, tensors: [{ name: "batch[0]", shape: [8, 3], kind: "float32", min: -1, mean: 0.25, max: "inf" }, { name: "loss", shape: [], kind: "float32", mean: 0.5 }], layers: [{ name: "fc", norm: 0.5, ratio: 0.001 }, { name: "out", norm: "nan" }] };
  const { asked, store, tab, texts, find } = shown({ state: { name: "stopped" } }, { inspect: { ...inspect, step: 40 } });
  tab("inspect").click();
  await until(() => expect(asked).toEqual([{ ask: "command", id: "1", name: "inspect", values: { on: true }, basis: 48 }]));
  store.hear({ patch: { inspect } }, []);
  await until(() => expect(texts(".looks h2")[0]).toBe("Last batch step 48"));
  expect(texts(".looks tbody tr").map((each) => each.replaceAll(" ", ""))).toEqual(["batch[0]8×3fp32-10.25inf", "lossscalarfp32–0.5–", "fc0.50.001", "outnan–"]);
  expect(texts(".looks thead th")[7]).toBe("norm in step 47");
  expect(find(".looks .wrong").textContent).toBe("inf");
  expect(asked).toHaveLength(1);
});

test("Inspect: while the run goes on nothing is asked, nor of a run elsewhere", async () => {
  const going = shown();
  going.tab("inspect").click();
  await until(() => expect(going.pane().textContent).toContain("Pause to see the last batch"));
  const elsewhere = shown({ state: { name: "paused" }, run: { name: "net", panes: ["hooks"] }, breakpoints: ["loss > 3", "loss > 3"] });
  await until(() => expect(elsewhere.pane().textContent).toContain("stay in the process of the run"));
  await until(() => expect([...going.opened.slice(1), ...elsewhere.opened]).toEqual([["inspect"], ["inspect"]]));
  expect([...going.asked, ...elsewhere.asked]).toEqual([]);
  expect(elsewhere.texts(".looks li code")).toEqual(["loss > 3"]);
  elsewhere.find(".looks li button").click();
  expect(elsewhere.asked.at(-1)).toMatchObject({ name: "pause_not_when", values: { text: "loss > 3" } });
});

test("Inspect: a condition that is refused stays to be corrected", async () => {
  const { asked, store, tab, find } = shown(), field = () => find("[aria-label='Pause when']");
  tab("inspect").click();
  await until(() => expect(field()).not.toBe(null));
  field().value = "loss is";
  field().dispatchEvent(new Event("input", { bubbles: true }));
  await until(() => { field().form.requestSubmit(); expect(asked.at(-1)).toMatchObject({ name: "pause_when", values: { text: "loss is" } }); });
  answer(store, asked, { status: "refused", reason: "what is it?" });
  await until(() => expect(find(".message").textContent).toContain("what is it?"));
  await until(() => expect(find(".pane .wrong").textContent).toBe("what is it?"));  // where it was typed
  expect(field().value).toBe("loss is");
});

test("Inspect: the code that reads the batch", () => {
  expect(codeFor({ state: { in_cell: true }, run: { loaders: ["valid"] } })).toBe("# after Detach, in any cell:\nwith trainer.paused():\n    x, y = trainer.batch\n    pred = trainer.pred\n    trainer.validate()");
  expect(codeFor({ state: {}, run: {} }, [{ name: "batch['x']" }, { name: "loss" }])).toBe("# in any cell:\nwith trainer.paused():\n    batch = trainer.batch");
});

test("LR: before a search one line and one button, whose fields are those of the command", async () => {
  const { asked, store, tab, find, texts, box } = shown({}, { lr: {} });
  tab("lr").click();
  await until(() => expect(texts(".pane > .bar button")).toEqual(["Find a rate"]));
  expect(box.querySelectorAll(".figure, .rates")).toHaveLength(0);
  expect(texts(".settings label")).toEqual(["start_lr the lowest rate", "num_steps"]);  // one optimizer: nothing to choose
  type(find("[aria-label=start_lr]"), "1e-5");
  type(find("[aria-label=num_steps]"), "x");
  await until(() => expect(find("[aria-label=num_steps]").value).toBe("x"));
  find(".pane > .bar button").click();
  expect(asked.at(-1)).toMatchObject({ name: "lr_find", values: { start_lr: 1e-5, num_steps: "x" } });  // the run says what is wrong
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "no number of steps" }, []);
  await until(() => expect(texts(".pane .wrong")).toEqual(["no number of steps"]));  // where it was typed
});

test("LR: of several optimizers the first one stands there, and is asked for", async () => {
  const { asked, tab, find } = shown({ tunables: { "lr.g": { at: 0, kind: "float" }, "lr.d": { at: 1, kind: "float" } } }, { lr: {} });
  tab("lr").click();
  await until(() => expect(find("[aria-label=optimizer]").value).toBe("g"));
  find(".pane > .bar button").click();
  expect(asked.at(-1)).toMatchObject({ name: "lr_find", values: { optimizer: "g" } });
});

test("LR: a search under way can be cancelled, and a found rate used", async () => {
  const { asked, store, tab, texts, find } = shown({}, { lr: { search: { ...SEARCH, ended: undefined, suggestions: {} } } });
  tab("lr").click();
  await until(() => expect(texts(".pane > .bar")).toEqual(["Cancel5 of 100 rates tried"]));
  find(".pane > .bar button").click();
  expect(asked.at(-1)).toEqual({ ask: "cancel", id: "1" });
  store.hear({ patch: { lr: { search: SEARCH } } }, []);
  await until(() => expect(texts(".rates tr")).toEqual(["Valley midpoint0.01Use", "Steepest falls fastest0.01Use", "Slide beyond30Use"]));
  find(".rates tr[data-name=valley] button").click();
  expect(asked.at(-1)).toMatchObject({ name: "tune", values: { lr_scale: 0.2 } });
  store.hear({ patch: { values: { lr_scale: { value: 0.2 } } } }, []);
  await until(() => expect(texts(".rates tr")[0]).toBe("Valley midpoint0.01in use"));
  expect(texts(".pane > .bar")).toEqual(["Search againThe valley it is."]);
});

test("LR: why a run cannot search", async () => {
  const { asked, tab, texts, find } = shown({ commands: { ...VIEW.commands, lr_find: { at: 3, why_not: "no batches" } } });
  tab("lr").click();
  await until(() => expect(texts(".pane > .bar")).toEqual(["Find a rateno batches"]));
  find(".pane > .bar button").click();
  expect(asked).toEqual([]);
  const elsewhere = shown({ commands: { tune: { at: 0 } } });  // its view of commands has none that it does not take
  await until(() => expect(elsewhere.pane().textContent).toBe("A search runs where the run was started: trainer.lr_find() in its notebook or script."));
});

test("LR: the curve leaves out what is no number, and no label lies on another", () => {
  expect(finite(SEARCH)).toEqual([[1e-6, 1e-4, 1e-2, 10], [2, 1.9, 1.5, 90], [2, 1.95, 1.7, 60]]);
  expect(searchTraces(SEARCH).map(({ name, x }) => [name, x.length])).toEqual([["loss", 4], ["smoothed", 4]]);
  const [low, high] = lossRange(finite(SEARCH));
  expect(low).toBeLessThan(1.5);
  expect(high).toBeGreaterThan(2);
  expect(high).toBeLessThan(5);  // not where the loss runs away
  const { shapes, annotations } = searchLayout(SEARCH, 1e-3);
  expect(annotations.map(({ text }) => text)).toEqual(["valley 0.01", "steepest 0.01", "your click 0.001"]);  // "slide" is beyond the curve
  expect(shapes.map(({ x0 }) => x0)).toEqual([0.01, 0.0101, 1e-3]);
  expect(new Set(annotations.map(({ y }) => y)).size).toBe(3);
  expect(annotations[0].x).toBe(-2);
  expect(lossRange([[], [], []])).toBe(undefined);
});

test("LR: values of the fields, the tunable that takes a rate, and the plan", () => {
  const rules = { a: { kind: "float" }, b: { kind: "int" }, c: { kind: "str" } };
  expect(read({ a: " 1e-3", b: "", c: "exp" }, rules)).toEqual({ a: 0.001, c: "exp" });
  const numbers = { a: { kind: "float", needed: false }, b: { kind: "float", needed: true } };
  expect(read({ a: "None ", b: "none" }, numbers)).toEqual({ a: null, b: "none" });
  expect(change({ use: ["lr.d", 1] }, 0.003)).toEqual({ "lr.d": 0.003 });
  const curve = { stride: 1, rows: Float32Array.from([1, 2, 3].flatMap((step) => [step, 0, 1, 1, 0.5, 1, 0, 0, 0])) }, plan = { steps: [2, 3, 4], scheduled: [0.5, 0.4, 0.3], in_force: [0.5, 0.4, 0.3] };
  const made = planTraces({ plan, curve });
  expect(made.map(({ name, x }) => [name, [...x]])).toEqual([["so far", [1, 2, 3]], ["to come", [3, 4]]]);
  expect(planTraces({ plan: { ...plan, in_force: [1, 1, 1] } }).map(({ name }) => name)).toEqual(["schedule", "to come"]);
});

test("Alerts: the newest first, with advice and whether they have ended; code as code", async () => {
  const { tab, texts, find } = shown();
  tab("alerts").click();
  await until(() => expect(texts(".alerts ol li")).toEqual(["Slow hook step 40 · goes onThe hook 'slow' takes 66%.Switch it off.", "Spike step 10 · ended at step 20The loss rose.Lower lr."]));
  expect(find(".alerts ol code").textContent).toBe("off");
});

test("an alert that goes on is the message of a running run, until something was changed", () => {
  expect(message(VIEW)).toBe("Slow hook at step 40: The hook 'slow' takes 66%. Switch it off.");
  const changed = { ...VIEW, journal: { count: 3, entries: { 3: { kind: "tune", what: "lr", change: "1 → 2", step: 44 } } } };
  expect(alertOf(changed)).toBe(undefined);
  expect(message(changed)).toBe("Last change: tune lr 1 → 2.");
});

test("a search for a rate is how the run stands", () => {
  const view = { ...VIEW, state: { name: "paused", searching: "3 of 100" } };
  expect([standing(view), colour(view), phase(view)]).toEqual(["searching", "running", "rate 3 of 100"]);
  expect(message(view)).toContain("3 of 100 tried. The run stands at step 48");
});

test("numbers of tables", () => {
  expect([0, 0.5, 0.00321, 0.00001, 123456, "nan", undefined].map(even)).toEqual(["0.0000", "0.5000", "0.00321", "1.00e-5", "1.23e5", "nan", "–"]);
  expect([0.0001, 0.2, 2000].map(duration)).toEqual(["0.1 ms", "0.2 s", "33:20"]);
  expect([0, 0.5, 1, 1.01, 30].map(epochAfter)).toEqual([1, 1, 1, 2, 30]);
  expect([{}, { epoch: 0 }, { epoch: 0, batch: 2 }, { epoch: 3 }, { epoch: 3, batch: 1 }].map(epochOf)).toEqual([undefined, 1, 1, 3, 4]);  // between two epochs: the one that has ended
  expect(partsOf({ seconds: { data: 0, forward: 1 } }).map(({ name }) => name)).toEqual(["forward"]);
  expect(TABS.map(({ name }) => name)).toHaveLength(new Set(TABS.map(({ name }) => name)).size);
});

test("the system tab draws a small curve of each figure, with its newest value", async () => {
  const figures = {
    gpu_memory0: { at: 1, label: "GPU memory", unit: "GB", most: 80, now: 12.5, points: { 4: 10, 5: 12.5 } },
    cpu: { at: 0, label: "CPU", unit: "%", most: 100, now: 43, points: { 4: 12, 5: 43 } },
    read: { at: 2, label: "Disk, read", unit: "MB/s", points: { 4: 0 } },
  };
  const { store, tab, pane, texts, opened, find } = shown({ run: { name: "net", panes: ["system"] } });
  tab("system").click();
  await until(() => expect(pane().textContent).toContain("The first figures"));
  store.hear({ patch: { system: { every: 2, figures, missing: "The use of the GPU needs a library" } } }, []);
  await until(() => {
    expect(opened.at(-1)).toEqual(["system"]);
    expect(texts("figcaption")).toEqual(["CPU 43 %", "GPU memory 12.5 GB of 80 GB", "Disk, read –"]);
    expect(find("[role=tabpanel] svg").getAttribute("aria-label")).toBe("CPU: 43 %, 12 to 43 %");
    expect(pane().textContent).toContain("in the last 0:04; a point is the mean of 2 s");
    expect(pane().textContent).toContain("needs a library");
  });
});

test("a small curve has gaps where nothing was measured", () => {
  expect(pathOf({ 0: 0, 1: 50, 20: 100 }, 100)).toBe("M0.0 35.0L12.0 18.0M240.0 1.0");
  expect(pathOf({ 7: 3 })).toBe("M240.0 1.0");
  expect(pathOf({})).toBe("");
  expect(wordsOf({ unit: "GB", most: 64, points: {} })).toEqual({ newest: "– of 64 GB", range: "" });
});

test("what is not recorded yet is offered in a tab of its own, by a click", async () => {
  const record = { at: 9, values: { what: { at: 0, kind: "str", needed: true } }, buttons: {
    "Record layers": { at: 0, place: "tab", doc: "a map of layers", values: [["what", "layers"]] },
    "Record samples": { at: 1, place: "tab", doc: "the worst", values: [["what", "samples"]], why_not: "It is recorded already" },
  } };
  const commands = { ...VIEW.commands, record }, { asked, tab, pane, find, store, texts } = shown({ commands });
  expect(find("[aria-label=Controls] button[name=record]")).toBe(null);
  tab("more").click();
  await until(() => expect(pane().querySelectorAll("button")).toHaveLength(1));
  expect(pane().textContent).toContain("a map of layers");
  find("[role=tabpanel] button[name=record]").click();
  await until(() => expect(asked.at(-1)).toMatchObject({ ask: "command", name: "record", values: { what: "layers" } }));
  store.hear({ patch: { commands: { record: { buttons: { "Record layers": { why_not: "It is recorded already" } } } } } }, []);
  await until(() => expect(texts("[role=tab]")).not.toContain("Record"));
  expect(shown({ commands, may_steer: false }).tab("more")).toBe(null);
});
