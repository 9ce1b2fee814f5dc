import { render } from "preact";
import { html } from "htm/preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Panel } from "../src/panel.js";
import { cellsOf, choicesOf, usualOf } from "../src/parts.js";
import { keptPins } from "../src/pins.js";
import { Store } from "../src/store.js";
import { until } from "./until.js";

const NUMBERS = { "train/loss": { value: 0.5, of: 33, step: 12 }, "train/mae": { value: 2, of: 33, step: 12 }, lr: { value: 0.1, of: 1, step: 12 }, "valid/loss": { value: 0.4, of: 1, step: 10, best: { value: 0.3, step: 5 } } };
const VIEW = { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: { step: 12, seconds: 3 }, numbers: NUMBERS, memory: { label: "Memory", used: 1.04e9 }, tunables: {}, values: {}, commands: {}, points: {}, hooks: {}, journal: { count: 0, entries: {} } };

function shown(view = VIEW) {
  const store = new Store({ listen() {}, ask: async () => {}, plotly: () => new Promise(() => {}) }), box = document.body.appendChild(document.createElement("div"));
  store.hear({ v: 1, view }, []);
  render(html`<${Panel} store=${store} />`, box);
  const all = (selector) => [...box.querySelectorAll(selector)];
  return { box, all, find: (selector) => box.querySelector(selector), labels: () => all(".numbers .label").map((each) => each.textContent).slice(2), button: (text) => all("button").find((each) => each.textContent === text), tick: (text) => all(".pins label").find((each) => each.textContent === text).querySelector("input").click() };
}

beforeEach(() => localStorage.clear());
afterEach(() => document.body.replaceChildren());

const USUAL = ["train/loss", "valid/loss", "lr", "Memory"];

test("each record can be chosen, and its best value; the usual numbers are the losses, the rate, and memory", () => {
  expect(choicesOf(VIEW).map(({ label }) => label)).toEqual(["train/loss", "train/mae", "lr", "valid/loss", "best valid/loss", "Memory"]);
  expect(usualOf(VIEW)).toEqual(["train/loss", "valid/loss", "lr", "memory"]);
  expect(cellsOf(VIEW, ["best valid/loss", "gone", "memory"]).slice(2)).toEqual([["best valid/loss", "0.3", "", "at step 5"], ["Memory", "1.0", "GB", ""]]);
  expect(cellsOf(VIEW, ["gone"])).toEqual(cellsOf(VIEW));
});

test("a record is old where others are newer, not where the run is ahead of all of them", () => {
  const style = (step) => cellsOf({ ...VIEW, place: { step: 900 }, numbers: { ...NUMBERS, lr: { value: 0.1, of: 1, step } } }).find(([label]) => label === "train/loss").slice(3);
  expect([style(12), style(78), style(79)]).toEqual([["mean of 33", ""], ["mean of 33", ""], ["at step 12", "old"]]);
});

test("a person chooses with the keys, this browser keeps it, and the usual numbers come back", async () => {
  const { find, labels, button, tick } = shown(), pin = () => find("button.pin");
  expect([pin().getAttribute("aria-expanded"), labels()]).toEqual(["false", USUAL]);
  pin().click();
  await until(() => expect(document.activeElement).toBe(find(".pins input")));
  expect(button("Usual numbers").getAttribute("aria-disabled")).toBe("true");
  tick("train/loss");
  await until(() => expect(labels()).toEqual(USUAL.slice(1)));
  tick("best valid/loss");
  await until(() => expect(labels()).toEqual([...USUAL.slice(1), "best valid/loss"]));
  expect(keptPins()).toEqual(["valid/loss", "lr", "memory", "best valid/loss"]);
  expect(shown().labels()).toEqual(labels());  // of another run, or after a reload
  const heard = vi.fn();
  document.body.addEventListener("keydown", heard);
  find(".pins").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  await until(() => expect(find(".pins")).toBe(null));
  expect([document.activeElement === pin(), heard.mock.calls.length]).toEqual([true, 0]);
  pin().click();
  await until(() => expect(button("Usual numbers").getAttribute("aria-disabled")).toBe("false"));
  button("Usual numbers").click();
  await until(() => expect([labels(), keptPins()]).toEqual([USUAL, null]));
});

test("two panels of a page show the same numbers; what only another run has is kept", async () => {
  localStorage.setItem("trainer_nb pins", JSON.stringify(["valid/accuracy", "lr"]));
  const one = shown(), other = shown();
  expect([one.labels(), other.labels()]).toEqual([["lr"], ["lr"]]);
  one.find("button.pin").click();
  await until(() => expect(one.find(".pins input:disabled")).not.toBe(null));  // the last one stays
  one.tick("train/mae");
  await until(() => expect(other.labels()).toEqual(["lr", "train/mae"]));
  expect(keptPins()).toEqual(["lr", "train/mae", "valid/accuracy"]);
});

test("what is chosen while a panel is drawn is seen by it, too", async () => {
  const late = shown();  // it listens after it was drawn
  localStorage.setItem("trainer_nb pins", JSON.stringify(["lr"]));
  await until(() => expect(late.labels()).toEqual(["lr"]));
});

test("what is kept may be anything", () => {
  for (const each of ["{", "[]", "[1]", "7"]) {
    localStorage.setItem("trainer_nb pins", each);
    expect(keptPins()).toBe(null);
  }
});

test("many numbers can be searched", async () => {
  const { find, all } = shown({ ...VIEW, numbers: { ...NUMBERS, ...Object.fromEntries(Array.from({ length: 12 }, (_, at) => [`train/m${at}`, { value: at, of: 1, step: 1 }])) } });
  find("button.pin").click();
  await until(() => expect(find(".pins input[type=search]")).not.toBe(null));
  const field = find(".pins input[type=search]");
  field.value = "M11";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await until(() => expect(all(".pins label").map((each) => each.textContent)).toEqual(["train/m11"]));
});

test("why clicks wait stands beside the controls", async () => {
  const { find } = shown();
  expect([find(".obstacle").textContent, find(".obstacle").getAttribute("role")]).toEqual(["", "status"]);
  expect(shown({ ...VIEW, state: { name: "running", obstacle: "<b>this</b> kernel" } }).find(".obstacle").textContent).toBe("Controls wait for the cell: <b>this</b> kernel");
});
