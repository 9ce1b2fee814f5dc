import { render } from "preact";
import { html } from "htm/preact";
import { expect, test } from "vitest";
import { fitted, layout, smoothed, spansPowers, traces } from "../src/chart.js";
import { buttonsOf } from "../src/controls.js";
import { Panel } from "../src/panel.js";
import { cellsOf, usualOf } from "../src/parts.js";
import { Store } from "../src/store.js";
import { groupsOf, isFar, keptRange, rangeOf, stopOf, valueAt } from "../src/tunables.js";
import { brokenBy, colour, message, ownNames, plain, read, short } from "../src/words.js";
import { until } from "./until.js";

const button = (at, more) => ({ at, doc: "does it", place: "tools", ...more });
const VIEW = {
  may_steer: true, run: { name: "<b>net</b>", description: "cpu" }, state: { name: "running" },
  place: { step: 12, epoch: 0, epochs: 2, fraction: 0.25, seconds: 3, phase: "train" },
  numbers: { "train/loss": { value: 0.5, of: 33, step: 12 }, lr: { value: 1e-4, of: 1, step: 12 } },
  tunables: { lr: { at: 0, group: "Optimizer", scale: "log", kind: "float", min: 0, optional: true, none: "initial", doc: "rate" }, flag: { at: 1, group: "Loop", kind: "bool" }, mode: { at: 2, group: "Loop", kind: "choice", choices: [null, "a"] }, "slow.order": { at: 3, group: "slow", kind: "int", owner: "slow" } },
  values: { lr: { value: 0.01 }, flag: { value: false }, mode: {}, "slow.order": { value: 0 } },
  commands: {
    tune: { at: 0 }, stop: { at: 3, buttons: { Stop: button(0, { place: "ends", style: "stop" }) } },
    pause: { at: 1, buttons: { Pause: button(0, { place: "main", states: ["running"] }) } },
    resume: { at: 2, buttons: { Resume: button(0, { place: "main", states: ["paused"], why_not: "The run is running" }) } } },
  points: { slow: { label: "Slow", points: ["after_step"] } }, hooks: { slow: { at: 0, order: 0, enabled: true } },
  journal: { count: 0, entries: {} },
};

function shown(change = {}) {
  // what is said of open tabs is not asked for by a click
  const asked = [], link = { listen() {}, ask: async (each) => { if (each.ask !== "open") asked.push(each); }, plotly: () => new Promise(() => {}) };
  const store = new Store(link), box = document.body.appendChild(document.createElement("div"));
  store.hear({ v: 1, view: { ...VIEW, ...change } }, []);
  render(html`<${Panel} store=${store} />`, box);
  return { asked, store, box, find: (selector) => box.querySelector(selector) };
}

const type = (field, text) => {
  field.value = text;
  for (const each of ["input", "change"]) field.dispatchEvent(new Event(each, { bubbles: true }));
};

test("a view that came before the first drawing is shown, names as text", () => {
  const { find } = shown();
  expect(find(".name").textContent).toBe("<b>net</b>");
  expect(find(".pill").textContent).toBe("Running");
  expect(find(".step").textContent).toBe("12");
});

test("one main button, that of the state; buttons in the order of their commands", () => {
  expect(buttonsOf(VIEW).map(({ label }) => label)).toEqual(["Pause", "Stop"]);
  expect(buttonsOf({ ...VIEW, state: { name: "paused" } }).map(({ label }) => label)).toEqual(["Resume", "Stop"]);
});

test("a click is one message with all it means, and its answer is said", async () => {
  const { asked, store, find } = shown();
  find("button[name=pause]").click();
  expect(asked).toEqual([{ ask: "command", id: "1", name: "pause", values: {}, basis: 12 }]);
  store.hear({ re: "1", status: "refused", reason: "not now" }, []);
  await until(() => expect(find(".message").textContent).toBe("pause: refused: not now"));
});

test("what was asked for, or came too late, is not said of a run that stands otherwise since", async () => {
  const { asked, store, find } = shown(), said = () => find(".message").textContent;
  find("button[name=pause]").click();
  await until(() => expect(said()).toContain("pause: asked for"));
  store.hear({ patch: { state: { name: "stopped" } } }, []);
  await until(() => expect(said()).toContain("Stopped"));
  store.hear({ re: asked[0].id, status: "void", reason: "the process was gone" }, []);
  store.hear({ patch: { place: { step: 13 } } }, []);
  await until(() => expect(find(".step").textContent).toBe("13"));
  expect(said()).toContain("Stopped");
});

test("a tunable's switch stays as it was clicked until there is an answer, whatever is drawn meanwhile", async () => {
  const { asked, store, find } = shown(), flag = () => find(".row[data-name=flag] [role=switch]");
  flag().click();
  store.hear({ patch: { place: { step: 13 }, values: { flag: { value: false, seen: 1 } } } }, []);
  await until(() => expect(find(".step").textContent).toBe("13"));
  expect(flag().checked).toBe(true);
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "not now" }, []);
  await until(() => expect(flag().checked).toBe(false));
});

test("a list of choices stays as it was chosen until there is an answer, and shows what is to come", async () => {
  const { asked, store, find } = shown(), mode = () => find(".row[data-name=mode] select");
  mode().value = "1";
  mode().dispatchEvent(new Event("change", { bubbles: true }));
  expect(asked.at(-1).values).toEqual({ mode: "a" });
  store.hear({ patch: { place: { step: 13 }, values: { mode: { seen: 1 } } } }, []);
  await until(() => expect(find(".step").textContent).toBe("13"));
  expect(mode().value).toBe("1");
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "not now" }, []);
  await until(() => expect(mode().value).toBe("0"));
  store.hear({ patch: { values: { mode: { waits: true, pending: "a" } } } }, []);
  await until(() => expect(mode().value).toBe("1"));
});

test("two quick clicks on Step are two steps; on Pause, where Resume comes, they are one; Rewind stays open", async () => {
  const step = { at: 2, buttons: { Step: button(0, { place: "steps", states: ["running"] }) } }, rewind = { at: 3, buttons: { Rewind: button(0) } };
  const { asked, find } = shown({ commands: { ...VIEW.commands, step, rewind } });
  for (const name of ["step", "step", "pause", "pause", "rewind", "rewind"]) find(`button[name=${name}]`).click();
  expect(asked.map(({ name }) => name)).toEqual(["step", "step", "pause"]);
  await until(() => expect(find("section[aria-label=Rewind]")).not.toBe(null));  // and not closed again
});

test("Stop asks first", async () => {
  const { asked, find } = shown(), stop = find("button[name=stop]");
  stop.click();
  await until(() => expect(stop.textContent).toBe("Really stop?"));
  expect(asked).toEqual([]);
  await new Promise((done) => setTimeout(done, 260));
  stop.click();
  expect(asked.map(({ name }) => name)).toEqual(["stop"]);
});

const MORE = { at: 9, values: { epochs: { at: 0, kind: "int", needed: true, default: 1, doc: "how many epochs" } }, buttons: { "Train more": button(0, { place: "go_on" }) } };

test("a finished run trains on for the epochs that are written; a text is sent as it is, and refused in words", async () => {
  const commands = { ...VIEW.commands, train_more: MORE }, ended = { state: { name: "finished" }, commands };
  const { asked, store, find } = shown(ended), field = find(".more input");
  expect(find(".more label").textContent.trim()).toBe("How many epochs");
  expect([field.value, find(".more button").textContent]).toEqual(["1", "Train more"]);
  type(field, "30");
  find(".more button").click();
  expect(asked).toEqual([{ ask: "command", id: "1", name: "train_more", values: { epochs: 30 }, basis: 12 }]);
  type(field, "none");
  await until(() => { find(".more button").click(); expect(asked.at(-1).values).toEqual({ epochs: "none" }); });
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "no number" }, []);
  await until(() => expect(find(".message").textContent).toContain("refused: no number"));
  const off = { ...MORE, buttons: { "Train more": button(0, { place: "go_on", why_not: "The run is running" }) } };
  expect(shown({ commands: { ...commands, train_more: off } }).find(".more")).toBe(null);
  expect(shown({ ...ended, may_steer: false }).find(".more")).toBe(null);
});

test("a failed run goes on without its batch, or without the hook that raised", () => {
  const skip = button(1, { place: "go_on", values: [["skip_failed", true]] });
  const resume = { at: 2, values: { skip_failed: { at: 0, kind: "bool", needed: false } }, buttons: { "Skip the batch": skip } }, commands = { ...VIEW.commands, resume };
  const failure = { point: "after_step", step: 12, epoch: 0, batch: 2, traceback: "" };
  const { asked, box } = shown({ commands, state: { name: "error" }, hooks: { slow: { at: 0, order: 0, enabled: true, failure }, off: { at: 1, order: 1, enabled: false, failure } } });
  const buttons = [...box.querySelectorAll(".more button")];
  expect(buttons.map((each) => each.textContent)).toEqual(["Skip the batch", "Switch slow off"]);
  for (const each of buttons) each.click();
  expect(asked.map(({ name, values }) => [name, values])).toEqual([["resume", { skip_failed: true }], ["tune", { "slow.enabled": false }]]);
  const gone = { ...commands, tune: { at: 0, why_not: "The process is gone" } };  // nobody is there to switch it off
  expect(shown({ commands: gone, state: { name: "error" }, hooks: { slow: { at: 0, order: 0, enabled: true, failure } } }).box.textContent).not.toContain("Switch slow off");
});

test("a button whose command needs values asks for them first", async () => {
  const values = { label: { at: 0, kind: "str", needed: true, doc: "its name" }, share: { at: 1, kind: "float", needed: true, default: 0.5 }, twice: { at: 2, kind: "bool", needed: true }, more: { at: 3, kind: "int", needed: false }, kind: { at: 4, kind: "str", needed: true } };
  const keep = { at: 9, values, buttons: { Keep: button(0, { values: [["kind", "a"]] }) } };
  const { asked, find } = shown({ commands: { ...VIEW.commands, keep } });
  find("[aria-label=Controls] button[name=keep]").click();
  await until(() => expect(document.activeElement).toBe(find(".more input")));
  expect(asked).toEqual([]);
  const fields = [...find(".more").querySelectorAll("label")];
  expect(fields.map((each) => each.textContent.trim())).toEqual(["Its name", "Share", "Twice"]);
  type(fields[0].firstElementChild, "12");
  fields[2].firstElementChild.click();
  find(".more button").click();
  expect(asked.map(({ name, values: given }) => [name, given])).toEqual([["keep", { kind: "a", label: "12", share: 0.5, twice: true }]]);
  await until(() => expect(find(".more")).toBe(null));
  expect(document.activeElement).toBe(find("[aria-label=Controls] button[name=keep]"));
});

test("who may only look can press nothing", () => {
  const { asked, box, find } = shown({ may_steer: false });
  for (const each of box.querySelectorAll("section[aria-label=Controls] button")) each.click();
  expect(asked).toEqual([]);
  expect(find("#tunable-lr").disabled).toBe(true);
});

test("Validate says what it has measured, as soon as that is known", async () => {
  const numbers = (of, value) => ({ numbers: { "train/loss": { value: 0.4, of: 33, step: 9252 }, "valid/loss": { value, of: 1, step: 9252, count: of } } });
  const validate = { at: 4, buttons: { Validate: button(0) } };
  const { asked, store, find } = shown({ run: { name: "net", loaders: ["valid"] }, commands: { ...VIEW.commands, validate }, ...numbers(3, 0.7) });
  find("button[name=validate]").click();
  store.hear({ re: asked[0].id, status: "applied", where: "at step 9252" }, []);
  await until(() => expect(find(".message").textContent).toBe("validate: applied at step 9,252"));
  store.hear({ patch: numbers(4, 0.25) }, []);
  await until(() => expect(find(".message").textContent).toBe("Evaluated at step 9,252: valid/loss 0.25"));
});

test("a value is sent as a number, and a refusal stays beside its field", async () => {
  const { asked, store, find } = shown(), field = find("#tunable-lr");
  type(field, "/10");
  await until(() => expect(asked.at(-1)).toMatchObject({ name: "tune", values: { lr: 0.001 } }));
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "too small" }, []);
  await until(() => expect(find("[data-name=lr] .hint").textContent).toBe("too small"));
  expect(field.value).toBe("/10");
});

test("what is no number is said and not sent", async () => {
  const { asked, find } = shown();
  type(find("#tunable-lr"), "fast");
  await until(() => expect(find("[data-name=lr] .hint").textContent).toContain("fast is not a number"));
  expect(asked).toEqual([]);
});

test("a half-typed value stays while the run advances", async () => {
  const { store, find } = shown(), field = find("#tunable-lr");
  field.value = "0.0";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  store.hear({ patch: { place: { step: 13 }, values: { lr: { value: 0.02 } } } }, []);
  await until(() => expect(find(".step").textContent).toBe("13"));
  expect(field.value).toBe("0.0");
});

test("a box that is left as it was follows the run again", async () => {
  const { asked, store, find } = shown(), field = find("#tunable-lr"), input = (text) => { field.value = text; field.dispatchEvent(new Event("input", { bubbles: true })); };
  const before = field.value;
  input("7");
  await until(() => expect(field.className).toBe("draft"));
  input(before);
  field.dispatchEvent(new Event("blur"));
  await until(() => expect(field.className).toBe(""));
  store.hear({ patch: { values: { lr: { value: 0.02 } } } }, []);
  await until(() => expect(field.value).toBe("0.02"));
  expect(asked).toEqual([]);
});

test("what is typed while the slider's answer is on its way stays", async () => {
  const { asked, store, find } = shown(), field = find("#tunable-lr"), slider = find("[data-name=lr] input[type=range]");
  slider.value = "90";
  slider.dispatchEvent(new Event("change", { bubbles: true }));
  await until(() => expect(asked).toHaveLength(1));
  field.value = "*0.1";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  store.hear({ re: asked[0].id, status: "applied" }, []);
  store.hear({ patch: { place: { step: 13 } } }, []);
  await until(() => expect(find(".step").textContent).toBe("13"));
  expect(field.value).toBe("*0.1");
});

test("a box whose text is selected, to be typed over, stays so when the run changes the value", async () => {
  const { store, find } = shown(), field = find("#tunable-lr"), selected = () => field.value.slice(field.selectionStart, field.selectionEnd);
  field.focus();
  field.select();
  store.hear({ patch: { values: { lr: { value: 0.0246 } } } }, []);
  await until(() => expect(field.value).toBe("0.0246"));
  expect(selected()).toBe("0.0246");
  field.setSelectionRange(1, 1);
  store.hear({ patch: { values: { lr: { value: 0.5 } } } }, []);
  await until(() => expect(field.value).toBe("0.5"));
  expect(selected()).toBe("");
});

test("who asks is named, and for whom", async () => {
  const { store, find } = shown();
  store.hear({ patch: { waiting: { a: { name: "stop", values: [], source: "agent:night", by: "ada@lab", reason: "<b>done</b>" } } } }, []);
  await until(() => expect(find(".waiting span").textContent).toBe("agent:night (ada@lab) asks for stop: <b>done</b>"));
});

test("the order of a hook is not among the tunables", () => {
  const { box } = shown();
  expect([...box.querySelectorAll(".tunables .row")].map((each) => each.dataset.name)).toEqual(["lr", "flag", "mode"]);
});

test("words", () => {
  expect([0, 0.5, 1e-12, 12345.6, 2e7, "nan"].map(short)).toEqual(["0", "0.5", "1e-12", "12,346", "2e7", "nan"]);
  expect([3e-4, 1e-9, 100].map(plain)).toEqual(["3e-4", "1e-9", "100"]);
  expect(read("*0.5", { value: 0.02, kind: "float" })).toBe(0.01);
  expect(["1,500", "12,345,678.5", "*1,000"].map((text) => read(text, { value: 2, kind: "float" }))).toEqual([1500, 12345678.5, 2000]);
  for (const text of ["0,001", "1,5", "1.000,5", "3e-4,1", "1,5000", "1e400", "inf"]) expect(() => read(text, { value: 2, kind: "float" })).toThrow(`${text} is not a number: the box takes 0.01`);
  expect(read("initial", { value: 1, optional: true, none: "initial" })).toBe(null);
  expect(message({ ...VIEW, state: { name: "error", what: "no" } })).toContain("no");
});

const rows = (values, stride = 1) => ({ stride, rows: Float32Array.from(values.flatMap((value, at) => [at + 1, 0, value - 1, value + 1, value, stride, at, at, at])) });

test("traces: each loss has a line of its means, a binned one the range behind it", () => {
  const found = traces({ "train/loss": rows([3, 2, 1], 4), "valid/loss": rows([2]), lr: rows([0.1]), "train/loss\n0": rows([5]) }, { window: 1 });
  expect(found.map(({ name }) => name)).toEqual(["train/loss lowest", "train/loss highest", "train/loss", "valid/loss", "lr", "train/loss\n0"]);
  expect([...found[2].y]).toEqual([3, 2, 1]);
  expect(traces({ "train/loss": rows([1]) }, { hidden: new Set(["train/loss"]) })).toEqual([]);
});

test("smoothing keeps gaps, and does not lag", () => {
  expect([...smoothed(Float64Array.from([1, 2, 3, 4, 5]), 3)]).toEqual([1, 2, 3, 4, 5]);
  const gaps = [...smoothed(Float64Array.from([1, NaN, 3, 5, 7]), 3)];
  expect(gaps[1]).toBeNaN();
  expect(gaps[2]).toBe(4);
});

test("the scale chooses itself", () => {
  expect(spansPowers([{ "train/loss": rows([1, 0.5]) }])).toBe(false);
  expect(spansPowers([{ "train/loss": rows([100, 0.5]) }])).toBe(true);
  expect(spansPowers([{ "train/loss": rows([100, 0]) }])).toBe(false);
  expect(spansPowers([{ "train/loss": rows([100]) }, { "train/loss": rows([0.5]) }])).toBe(true);
});

test("what was measured with an average of the weights is called so", () => {
  const view = { ...VIEW, run: { name: "net", averaged: ["valid"] }, numbers: { "valid/loss": { value: 0.5, of: 1, step: 12 }, "test/loss": { value: 0.5, of: 1, step: 12 } } };
  expect(cellsOf(view).filter(([label]) => label.endsWith("loss")).map(([, , unit]) => unit)).toEqual(["average", ""]);
  const curve = { stride: 1, rows: new Float32Array(9) };
  const { store, box } = shown(view);
  store.hear({ patch: { run: { averaged: ["valid"] } }, curves: [{ name: "valid/loss", stride: 1, from: 0 }, { name: "test/loss", stride: 1, from: 0 }] }, [curve.rows, curve.rows]);
  return until(() => expect([...box.querySelectorAll(".legend button")].map((each) => each.textContent)).toEqual(["valid/loss (average)", "test/loss"]));
});

test("a slider has 3 digits, powers of ten where the rule says so, and goes back to where it came from", () => {
  const range = rangeOf({ kind: "float", scale: "log", value: 0.003 });
  expect([range.low, range.high].map((each) => Number(each.toPrecision(3)))).toEqual([1e-6, 0.1]);
  for (const value of [1e-6, 2.5e-5, 0.003, 0.1]) expect(valueAt(range, stopOf(range, value), "float") / value).toBeCloseTo(1, 1);
  expect(rangeOf({ kind: "int", scale: "linear", min: 1, value: 2 })).toEqual({ low: 1, high: 16, log: false });
  expect(valueAt({ low: 1, high: 16, log: false }, 101, "int")).toBe(9);
  const warm = rangeOf({ kind: "float", scale: "log", value: 1e-4 }), rule = { kind: "float", scale: "log" };  // of a warm-up's first step
  expect([2e-3, 0, undefined].map((value) => keptRange(warm, { ...rule, value }) === warm)).toEqual([true, true, true]);
  expect(isFar(0.2, { value: 0.1 }, keptRange(warm, { ...rule, value: 0.1 }))).toBe(false);
  expect([1, 2, 1e-8, 1e-7].map((each) => isFar(each, { value: 0.003 }, range))).toEqual([false, true, true, false]);
});

test("a slider is one message, and what is far beyond it is asked before", async () => {
  const { asked, store, find } = shown(), slider = find("[data-name=lr] input[type=range]");
  slider.value = "200";
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  expect(asked).toEqual([]);
  slider.dispatchEvent(new Event("change", { bubbles: true }));
  await until(() => expect(asked.at(-1)).toMatchObject({ name: "tune", values: { lr: 1 } }));
  store.hear({ re: asked.at(-1).id, status: "applied" }, []);
  type(find("#tunable-lr"), "50");
  await until(() => expect(find("[data-name=lr] .hint").textContent).toContain("far beyond the usual 1e-5 to 1"));
  expect(asked.length).toBe(1);
  [...find("[data-name=lr] .hint").querySelectorAll("button")].find((each) => each.textContent === "Set 50").click();
  await until(() => expect(asked.at(-1)).toMatchObject({ values: { lr: 50 } }));
});

test("between two epochs the head has the one that has ended, as the list of Rewind", async () => {
  const { find, store } = shown(), epoch = () => find(".place").textContent, at = (place) => store.hear({ patch: { place } }, []);
  at({ epoch: 0, batch: 0, epochs: 4, phase: "epoch_start" });
  await until(() => expect(epoch()).toBe("epoch1 / 4"));
  at({ epoch: 3 });
  await until(() => expect(epoch()).toBe("epoch3 / 4"));
  at({ phase: "train" });
  await until(() => expect(epoch()).toBe("epoch4 / 4"));
  at({ epoch: 4, phase: "epoch_start" });
  await until(() => expect(epoch()).toBe("epoch4 / 4"));
});

test("a refused value goes once another one is in force, and a number beyond 64 bits is refused in words", async () => {
  const { asked, find, store } = shown(), type = async (text) => {
    const box = find("[data-name=lr] input:not([type=range])");
    Object.assign(box, { value: text });
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.dispatchEvent(new Event("change", { bubbles: true }));
  };
  await type("1e20");
  await until(() => expect(find("[data-name=lr] .hint").textContent).toBe("1e20 is beyond 9.2e18, the largest that the box takes"));
  const before = asked.length;
  store.hear({ patch: { values: { lr: { value: 0.25 } } } }, []);
  await until(() => expect([find("[data-name=lr] input:not([type=range])").value, asked.length]).toEqual(["0.25", before]));
  expect(find("[data-name=lr]").className).not.toContain("refused");
});

test("a question is gone once another value is chosen, is refused, or comes from elsewhere; so is a refusal once the box is empty", async () => {
  const { asked, store, find } = shown(), hint = () => find("[data-name=lr] .hint").textContent, ask = async () => {
    type(find("#tunable-lr"), "50");
    await until(() => expect(hint()).toContain("far beyond"));
  };
  await ask();
  type(find("#tunable-lr"), "0,5");
  await until(() => expect(hint()).toContain("0,5 is not a number"));
  type(find("#tunable-lr"), "");
  await until(() => expect(hint()).not.toContain("0,5"));
  type(find("#tunable-lr"), "-1");
  store.hear({ re: asked.at(-1).id, status: "refused", reason: "lr = -1 is refused" }, []);
  await until(() => expect(hint()).toContain("-1 is refused"));
  find("#tunable-lr").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  await until(() => expect([hint(), find("[data-name=lr]").className]).toEqual(["rate", expect.not.stringContaining("refused")]));
  await ask();
  type(find("#tunable-lr"), "0.05");
  await until(() => expect(hint()).not.toContain("far beyond"));
  expect(asked.at(-1).values).toEqual({ lr: 0.05 });
  store.hear({ re: asked.at(-1).id, status: "applied" }, []);
  await ask();
  store.hear({ patch: { values: { lr: { value: 0.25 } } } }, []);
  await until(() => expect(hint()).not.toContain("far beyond"));
});

test("what was done is no longer said once the run fails; weights that are not finite are no place to go on from", async () => {
  const { asked, store, find } = shown({ state: { name: "paused" }, run: { ...VIEW.run, can_rewind: true }, commands: { ...VIEW.commands, resume: { at: 2, doc: "Go on", buttons: { Resume: button(0, { place: "main", states: ["paused", "error"] }) } } } });
  const message = () => find(".message").textContent, resume = () => find("button[name=resume]");
  expect(resume().className).toContain("main");
  resume().click();
  store.hear({ re: asked.at(-1).id, status: "applied", where: "at step 12" }, []);
  await until(() => expect(message()).toContain("resume: applied"));
  store.hear({ patch: { state: { name: "running" } } }, []);
  store.hear({ patch: { state: { name: "error", failed: "ValueError: bad" }, numbers: { "train/loss": { bad_since: 12 } } } }, []);
  await until(() => expect(message()).not.toContain("resume"));
  expect([resume().className, resume().title]).toEqual([expect.not.stringContaining("main"), "Train/loss is not finite since step 12: rewind to a state before it first"]);
});

test("a run that is counted in steps trains some steps more", async () => {
  const values = { epochs: { at: 0, kind: "int", needed: false, default: 1, doc: "how many epochs" }, steps: { at: 1, kind: "int", needed: false, default: 100, doc: "how many steps" } };
  const buttons = { "Train more": button(0, { place: "go_on", asks: ["epochs"], why_not: "The run is counted in steps" }), "Train more steps": button(1, { place: "go_on", asks: ["steps"] }) };
  const { asked, box, find } = shown({ state: { name: "finished" }, commands: { ...VIEW.commands, train_more: { at: 9, values, buttons } } });
  const [form, ...others] = box.querySelectorAll("form.more");
  expect([form.querySelector("label").textContent.trim(), others]).toEqual(["How many steps", []]);
  form.querySelector("button").click();
  expect(asked.at(-1)).toMatchObject({ name: "train_more", values: { steps: 100 } });
  await until(() => expect(find(".message").textContent).toContain("Train more steps 100: asked for"));
});

test("where something was written is said as it is, and places have their thousands", async () => {
  const { asked, store, find } = shown();
  find("[aria-label=Controls] button[name=pause]").click();
  store.hear({ re: asked.at(-1).id, status: "applied", where: "at step 12345 as /runs/20261130/weights_00012345" }, []);
  await until(() => expect(find(".message").textContent).toContain(`pause: applied at step 12,345 as /runs/20261130/weights_00012345`));
});

test("hooks with many tunables are folded, a search finds them, Undo says why it is asked", async () => {
  const many = Object.fromEntries([...Array(13).keys()].map((at) => [`alerts.a${at}`, { at: 9 + at, group: "alerts", owner: "alerts", kind: "bool" }]));
  const view = { ...VIEW, points: { ...VIEW.points, alerts: { label: "AlertsHook", points: [] } }, tunables: { ...VIEW.tunables, ...many }, journal: { count: 1, entries: {}, undo: { name: "lr", what: "lr", old: 0.02 } } };
  expect(groupsOf(view).map(({ title, open }) => [title, open])).toEqual([["Optimizer", true], ["Loop", true], ["alerts", false]]);
  expect(groupsOf({ ...view, points: { alerts: { own: true } } }).at(-1).open).toBe(true);
  const { asked, find, box } = shown(view);
  expect(box.querySelectorAll(".row").length).toBe(3);
  type(find("input[type=search]"), "a12");
  await until(() => expect([...box.querySelectorAll(".row")].map((each) => each.dataset.name)).toEqual(["alerts.a12"]));
  [...box.querySelectorAll("button")].find((each) => each.textContent === "Undo").click();
  expect(asked.at(-1)).toMatchObject({ name: "tune", values: { lr: 0.02 }, reason: "undo" });
});

test("where the run stands, a rate that was set is in the head at once", () => {
  const found = (state, values) => cellsOf({ ...VIEW, state: { name: state }, values: { lr: values } }).find(([label]) => label === "lr").slice(1, 4);
  expect([found("paused", { value: 0.02 }), found("running", { value: 0.02 })]).toEqual([["0.02", "", "1e-4 at step 12"], ["1e-4", "", ""]]);
  expect(found("finished", { value: 0.02, moves: true })).toEqual(["1e-4", "", ""]);  // of a schedule: the next step's
});

test("numbers are old once the recorder is off and the run goes on", () => {
  const below = (enabled, step) => cellsOf({ ...VIEW, place: { ...VIEW.place, step }, hooks: { recorder: { at: 0, order: 20, enabled } } }).slice(2).map((cell) => cell.slice(3));
  expect(below(true, 13)).toEqual([["mean of 33", ""], ["", ""]]);
  expect(below(false, 12)).toEqual([["mean of 33", ""], ["", ""]]);
  expect(below(false, 13)).toEqual([["at step 12", "old"], ["at step 12", "old"]]);
});

test("the ends of a smoothed slope do not lag", () => {
  const values = Float64Array.from({ length: 40 }, (_, at) => 100 - 2 * at);
  smoothed(values, 11).forEach((each, at) => expect(each).toBeCloseTo(values[at], 9));
});

test("a run that ended with a loss that is not finite is not green, and says what to do", () => {
  const run = { name: "net", can_rewind: true }, finished = { ...VIEW, run, state: { name: "finished" }, saved: { step: 8, time: 0 } };
  expect([colour(finished), message(finished)]).toEqual(["finished", "Finished after step 12. Last checkpoint: step 8."]);
  const nan = { ...finished, numbers: { "train/loss": { value: "nan", of: 33, step: 12, bad_since: 9 } } };
  expect(colour(nan)).toBe("error");
  expect(message(nan)).toBe("Finished after step 12, but train/loss is not finite since step 9. Rewind to a state before it, with a lower rate.");
  const diverged = { ...finished, alerts: { 1: { kind: "divergence", step: 5 }, 2: { kind: "spike", step: 3 } } };
  expect([colour(diverged), brokenBy(diverged)]).toEqual(["error", "it diverged at step 5"]);
  expect(colour({ ...diverged, alerts: { 1: { kind: "divergence", step: 5, ended: 7 } } })).toBe("finished");
  expect(message({ ...VIEW, state: { name: "paused" }, saved: { step: 1200, time: 0 } })).toBe("Paused after step 12. Last checkpoint: step 1,200.");
});

test("a title fits its chart, and keeps its end", () => {
  expect(fitted("grad_norm", 9)).toBe("grad_norm");
  expect(fitted("mean_difference_07", 12)).toBe("mean_…nce_07");
  const names = ["a_very_long_name_of_a_metric_of_a_set_07"], made = layout([{ title: names[0], names }], { width: 300 });
  expect(made.annotations[0].text.length).toBeLessThan(40);
  expect(made.annotations[0].hovertext).toBe(names[0]);
});

test("of many hooks those beyond the room start folded", () => {
  const names = Array.from({ length: 40 }, (_, at) => `hook${at}`), rule = (owner, at) => [`${owner}.amount`, { at, group: owner, owner, kind: "float" }];
  const view = { tunables: Object.fromEntries(names.map(rule)), values: {}, points: Object.fromEntries(names.map((name) => [name, { own: true }])) };
  expect(groupsOf(view).filter(({ open }) => open)).toHaveLength(20);
});

test("of several optimizers each has its loss and rate, and none stands twice", () => {
  const names = ["train/loss", "train/d/loss", "train/g/loss", "lr", "lr.d", "lr.g", "grad_norm", "grad_norm.d", "train/g/accuracy", "valid/loss"];
  expect(ownNames(names)).toEqual(["train/d/loss", "train/g/loss", "lr.d", "lr.g", "grad_norm.d", "train/g/accuracy", "valid/loss"]);
  expect(ownNames(["train/loss", "lr", "grad_norm"])).toEqual(["train/loss", "lr", "grad_norm"]);
  expect(usualOf({ numbers: Object.fromEntries(names.map((name) => [name, {}])) })).toEqual(["train/d/loss", "train/g/loss", "valid/loss", "lr.d", "lr.g", "grad_norm.d"]);
  const many = Object.fromEntries([...names, ...Array.from({ length: 12 }, (_, at) => `valid/${at}`)].map((name) => [name, {}]));
  expect(usualOf({ numbers: many, memory: { used: 1 } }).slice(-4)).toEqual(["lr.d", "lr.g", "grad_norm.d", "memory"]);
});
