import { gzipSync } from "node:zlib";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { VERSION, widgetLink } from "../src/link.js";
import { hidePicture, keepFocus, keepKeys, keepPicture, showAgain } from "../src/notebook.js";
import panel from "../src/panel.js";
import { Store } from "../src/store.js";
import { until } from "./until.js";

// A model of ipywidgets: what its views send, and what all of them hear.
function modelOf(values = { part: "dashboard" }) {
  const heard = {}, sent = [];
  return {
    sent,
    get: (name) => values[name],
    send: (message) => { sent.push(message); },
    on: (name, each) => { (heard[name] ??= new Set()).add(each); },
    off: (name, each) => { heard[name].delete(each); },
    say: (message, buffers = []) => { for (const each of [...heard["msg:custom"] ?? []]) each(message, buffers.map((each) => new DataView(each.buffer))); },
    turn: () => { for (const each of heard.comm_live_update) each(); },
    listening: (name) => heard[name]?.size ?? 0,
  };
}

const view = (step) => ({ v: VERSION, view: { may_steer: true, run: { name: "net" }, state: { name: "running" }, place: { step }, commands: {} }, curves: [] });

beforeEach(() => { URL.createObjectURL = (blob) => blob; URL.revokeObjectURL = () => {}; });
afterEach(() => {
  delete globalThis.trainer_nb_library;
  delete globalThis.Plotly;
  document.body.replaceChildren();
  vi.useRealTimers();
});

test("each view has a name, says hello with it, and hears only its own answers", async () => {
  const model = modelOf(), [one, other] = [new Store(widgetLink(model)), new Store(widgetLink(model))];
  const [first, second] = model.sent.map(({ page }) => page);
  expect(model.sent).toEqual([{ ask: "hello", v: VERSION, page: first }, { ask: "hello", v: VERSION, page: second }]);
  expect(first).not.toBe(second);
  model.say(view(3));
  expect([one.view.place.step, other.view.place.step]).toEqual([3, 3]);
  const answers = [one.command("pause"), other.command("stop")];
  expect(model.sent.slice(2).map(({ id, page }) => [id, page])).toEqual([["1", first], ["1", second]]);
  model.say({ re: "1", page: second, status: "refused" });
  model.say({ re: "1", page: first, status: "applied" });
  expect((await Promise.all(answers)).map(({ status }) => status)).toEqual(["applied", "refused"]);
});

test("each view of a model says what it has open itself, after each greeting, and a moment after it has gone", async () => {
  vi.useFakeTimers();
  const model = modelOf(), shown = [0, 1].map(() => new Store(widgetLink(model))), names = shown.map(({ link }) => link.page);
  const opens = () => model.sent.splice(0).filter(({ ask }) => ask === "open").map(({ tabs, page }) => [names.indexOf(page), tabs]).sort();
  model.say(view(3));
  const ends = shown.map((store, at) => store.open(["table", "hooks"][at]));
  await vi.advanceTimersByTimeAsync(1);
  expect(opens()).toEqual([[0, ["table"]], [1, ["hooks"]]]);
  model.say(view(4));
  await vi.advanceTimersByTimeAsync(1);
  expect(opens()).toEqual([[0, ["table"]], [1, ["hooks"]]]);
  ends[0]();
  shown[0].link.close();
  expect(opens()).toEqual([]);
  await vi.advanceTimersByTimeAsync(1500);
  expect(opens()).toEqual([[0, []]]);
});

test("a page that is too old for the kernel does not make another one old", () => {
  const model = modelOf(), [one, other] = [new Store(widgetLink(model)), new Store(widgetLink(model))];
  model.say({ v: VERSION + 1, page: one.link.page });
  expect([one.stale, other.stale]).toEqual([true, false]);
});

test("patches and curves are taken in the order in which they come", () => {
  const model = modelOf(), store = new Store(widgetLink(model)), row = (step) => Float32Array.of(step, 0, 1, 1, 1, 1, 0, 0, 0);
  model.say(view(0));
  for (let step = 1; step <= 50; step++) model.say({ patch: { place: { step } }, curves: [{ name: "train/loss", stride: 1, from: step - 1 }] }, [row(step)]);
  expect(store.view.place.step).toBe(50);
  expect([...store.curves["train/loss"].rows].filter((_, at) => at % 9 === 0)).toEqual(Array.from({ length: 50 }, (_, at) => at + 1));
});

test("a closed view hears nothing more", () => {
  const model = modelOf(), link = widgetLink(model);
  link.listen(() => {});
  link.close();
  expect([model.listening("msg:custom"), model.listening("comm_live_update")]).toEqual([0, 0]);
});

test("when the kernel has ended the panel says so, until it is there again", () => {
  const model = modelOf(), store = new Store(widgetLink(model));
  model.say(view(1));
  model.turn();
  expect(store.cut).toContain("has ended");
  expect(model.sent.at(-1).ask).toBe("hello");
  model.say(view(2));
  expect(store.cut).toBe("");
});

test("a message that cannot be sent is an answer, too", async () => {
  const model = Object.assign(modelOf(), { send: () => { throw new Error("dead kernel"); } }), store = new Store(widgetLink(model));
  expect((await store.command("pause")).reason).toContain("dead kernel");
});

const asked = (model) => model.sent.filter(({ ask }) => ask === "library").length;

test("plotly is asked for once a page, for all panels, and leaves the page's own alone", async () => {
  vi.useFakeTimers();
  const models = [modelOf(), modelOf()], links = [...models, models[0]].map((model) => widgetLink(model));
  const found = Promise.all(links.map((link) => link.plotly()));
  await vi.advanceTimersByTimeAsync(100);
  expect(models.map(asked)).toEqual([1, 0]);
  vi.useRealTimers();
  globalThis.Plotly = "of the page";
  const bytes = gzipSync("globalThis.Plotly = { ours: true };");
  URL.createObjectURL = () => `data:text/javascript,${encodeURIComponent("globalThis.Plotly = { ours: true };")}`;
  models[1].say({ library: "plotly" }, [new Uint8Array(bytes)]);  // whoever hears it
  expect(await found).toEqual([{ ours: true }, { ours: true }, { ours: true }]);
  expect(globalThis.Plotly).toBe("of the page");
  await widgetLink(modelOf()).plotly();
  expect(models.map(asked)).toEqual([1, 0]);
});

test("a panel asks again where the kernel of the first does not answer", async () => {
  vi.useFakeTimers();
  const [busy, free] = [modelOf(), modelOf()];
  widgetLink(busy).plotly();
  widgetLink(free).plotly();
  await vi.advanceTimersByTimeAsync(60_000);
  expect([busy, free].map(asked)).toEqual([1, 1]);
});

test("a panel that is closed before its answer comes leaves it to the next", () => {
  const models = [modelOf(), modelOf(), modelOf()], links = models.map((model) => widgetLink(model));
  for (const each of links.slice(0, 2)) each.plotly();
  links[0].close();
  links[1].close();
  links[2].plotly();
  expect(models.map(asked)).toEqual([1, 1, 1]);
});

const boxes = (...inner) => inner.map((html) => {
  const box = document.body.appendChild(document.createElement("div"));
  box.innerHTML = html;
  return box;
});

test("keys stay in the panel, but for those of the notebook", () => {
  const [box] = boxes("<button></button>"), outside = vi.fn(), stop = keepKeys(box), button = box.firstChild;
  document.body.addEventListener("keydown", outside);
  const press = (key, more) => button.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
  press("d");
  expect([outside.mock.calls.length, button.hasAttribute("data-lm-suppress-shortcuts")]).toEqual([0, true]);
  for (const [key, more] of [["Enter", { shiftKey: true }], ["s", { ctrlKey: true }], ["Escape"]]) press(key, more);
  expect([outside.mock.calls.length, button.hasAttribute("data-lm-suppress-shortcuts")]).toEqual([3, false]);
  stop();
  press("d");
  expect(outside).toHaveBeenCalledTimes(4);
  document.body.removeEventListener("keydown", outside);
});

test("the panel has the focus of a control that is gone, and takes it from nobody", async () => {
  const [box, other] = boxes("<section class='tnb'><button>Approve</button><button>Add</button></section>", "<input>"), stop = keepFocus(box), [panel] = box.children;
  const turn = () => new Promise((done) => setTimeout(done));
  panel.children[0].focus();
  panel.children[0].remove();
  await turn();
  expect(document.activeElement).toBe(panel);
  panel.children[0].focus();
  other.children[0].focus();
  panel.children[0].remove();
  await turn();
  expect(document.activeElement).toBe(other.children[0]);
  stop();
});

test("the picture in the output below is hidden, and no other one", () => {
  const [output, next] = boxes("<div><p></p></div>", "<div class='tnb-kept'></div>"), show = hidePicture(output.querySelector("p"));
  expect(output.dataset.tnbPanel).toBe("");
  show();
  expect(output.dataset.tnbPanel).toBeUndefined();
  next.before(document.createElement("hr"));
  hidePicture(output.querySelector("p"));
  expect(output.dataset.tnbPanel).toBeUndefined();
});

// A notebook in which these outputs stand in the second cell, and the widget of one of them.
function inNotebook(id, made) {
  const list = (each) => ({ length: each.length, get: (at) => each[at] }), outputs = { ...list(made.map((each) => ({ toJSON: () => each }))), set: vi.fn() };
  return { ...modelOf({ own_id: id }), outputs, widget_manager: { context: { model: { cells: list([{}, { outputs }]) } } } };
}
const shownBy = (id) => ({ data: { "application/vnd.jupyter.widget-view+json": { model_id: id } } });

test("a new picture goes into the output below the panel's", () => {
  const old = { data: { "text/html": "<div class='tnb-kept'>old</div>" } }, kept = { "text/html": "<div class='tnb-kept'>new</div>" };
  const model = inNotebook("b", [shownBy("a"), old, shownBy("b"), old]);
  keepPicture(model, kept);
  expect(model.outputs.set.mock.calls).toEqual([[3, { data: kept }]]);
  keepPicture(modelOf(), kept);  // a front end that does not let us
});

test("an output that the manager of widgets has given up is shown again, once all models are there", () => {
  vi.useFakeTimers();
  const model = inNotebook("b", [shownBy("a"), shownBy("b")]), { set } = model.outputs, restored = new Set();
  Object.assign(model.widget_manager, { restoredStatus: false, restored: { connect: (each) => restored.add(each), disconnect: (each) => restored.delete(each) } });
  const end = showAgain(model), [output] = boxes("Loading widget...");
  output.className = "jupyter-widgets";
  vi.advanceTimersByTime(60_000);
  restored.forEach((each) => each());
  vi.advanceTimersByTime(400);
  expect(set).not.toHaveBeenCalled();
  output.textContent = "Error displaying widget: model not found";
  vi.advanceTimersByTime(700);
  expect(set.mock.calls).toEqual([[1, shownBy("b")]]);
  end();
  vi.advanceTimersByTime(60_000);
  expect([set.mock.calls.length, restored.size]).toEqual([1, 0]);
});

test("messages that anywidget refuses are taken without it, and only those", async () => {
  vi.useFakeTimers();
  const took = [], onMessage = vi.fn(), refuse = async () => { throw new Error("[anywidget] Failed to initialize model."); };
  const base = { _handle_comm_msg(message) { took.push([this, message]); } }, own = Object.assign(Object.create(Object.assign(Object.create(base), { _handle_comm_msg: refuse })), { comm: { on_msg: onMessage } });
  const model = Object.assign(modelOf({ own_id: "b" }), { widget_manager: { get_model: async (id) => ({ b: own })[id] } });
  const [link, other] = [widgetLink(model), widgetLink(model)];
  other.listen(() => {});
  model.say(view(1));
  await vi.advanceTimersByTimeAsync(60_000);
  expect(onMessage).not.toHaveBeenCalled();
  link.listen(() => {});
  await vi.advanceTimersByTimeAsync(60_000);
  onMessage.mock.calls[0][0]("said");
  expect(took).toEqual([[own, "said"]]);
  expect(model.sent.map(({ ask }) => ask)).toEqual(["hello", "hello", "hello"]);
});

test("a part shows what it is named after", async () => {
  for (const [part, there, not] of [["plots", ".tnb-plots", "header, .journal, [aria-label=Controls]"], ["controls", ".tunables", "header, .tnb-plots"], ["hook_table", ".hooks", "header, .tunables"]]) {
    const model = modelOf({ part }), [el] = boxes("");
    const close = panel.render({ model, el });
    model.say({ ...view(1), view: { ...view(1).view, tunables: {}, values: {}, hooks: {}, points: {}, waiting: {}, journal: { entries: {} } } });
    await until(() => expect(el.querySelector(there)).not.toBe(null));
    expect(el.querySelector(not)).toBe(null);
    expect(document.title).toBe("");
    close();
    expect(el.childElementCount).toBe(0);
  }
});
