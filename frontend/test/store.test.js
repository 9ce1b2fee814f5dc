import { expect, test } from "vitest";
import { unpacked } from "../src/link.js";
import { COLUMNS, Store, column, merge } from "../src/store.js";
import made from "./messages.json";

const silent = { listen() {}, ask: async () => {} };

test("the messages of the feed lead to its view and its bins", () => {
  const store = new Store(silent);
  for (const each of made.messages) store.hear(...unpacked(JSON.stringify(each)));
  expect(store.view).toEqual(made.view);
  for (const [name, { stride, rows }] of Object.entries(made.curves)) {
    const curve = store.curves[name], found = Array.from(curve.rows, (each) => (Number.isNaN(each) ? null : each));
    expect(curve.stride).toBe(stride);
    // a bin that is not full may come last
    expect(found.slice(0, rows.length * COLUMNS.length)).toEqual(rows.flat());
    expect(found.length / COLUMNS.length - rows.length).toBeLessThanOrEqual(1);
  }
});

test("steps beyond 2 to the 24th are whole", () => {
  const store = new Store(silent);
  for (const each of made.messages) store.hear(...unpacked(JSON.stringify(each)));
  const steps = column(store.curves["train/loss"], "step"), stride = store.curves["train/loss"].stride;
  expect(steps[0]).toBe(stride + 2 ** 24 - 50);
  expect(steps.every((each, at) => !at || each > steps[at - 1])).toBe(true);
});

test("a merge patch adds, changes and removes, and keeps what it does not touch", () => {
  const old = { a: { b: 1, c: [1] }, d: { e: 2 } }, now = merge(old, { a: { b: null, f: { g: 3 } } });
  expect(now).toEqual({ a: { c: [1], f: { g: 3 } }, d: { e: 2 } });
  expect(now.d).toBe(old.d);
  expect(old.a.b).toBe(1);
});

test("`again` voids the curves, and a new view everything", () => {
  const store = new Store(silent);
  store.hear(...unpacked(JSON.stringify(made.messages[0])));
  store.hear({ again: true }, []);
  expect(store.curves).toEqual({});
  store.hear({ v: 1, view: { state: { name: "idle" } } }, []);
  expect(store.view).toEqual({ state: { name: "idle" } });
});

test("a command has an id that counts up, and its answer", async () => {
  const asked = [], store = new Store({ listen() {}, ask: async (message) => asked.push(message) });
  const first = store.command("pause"), second = store.command("tune", { lr: 0.1 });
  expect(asked.map(({ id }) => Number(id))).toEqual([1, 2]);
  store.hear({ re: "2", status: "refused", reason: "no" }, []);
  store.hear({ re: "1", status: "applied" }, []);
  expect(await first).toMatchObject({ status: "applied" });
  expect(await second).toMatchObject({ status: "refused", reason: "no" });
});

test("a command that cannot be sent says so", async () => {
  const store = new Store({ listen() {}, ask: async () => { throw new Error("cut"); } });
  expect((await store.command("pause")).reason).toContain("cut");
});
