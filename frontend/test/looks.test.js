import { render } from "preact";
import { html } from "htm/preact";
import { expect, test } from "vitest";
import { Data, captionOf } from "../src/data.js";
import { Layers, barsOf, heightOf, ink, inWords, placeOf, shareOf, ticksOf } from "../src/layers.js";
import { Panel } from "../src/panel.js";
import { Store } from "../src/store.js";
import { until } from "./until.js";

// A page whose kernel answers at once with what `answers` has for a question.
function asked(part, answers, looks) {
  const questions = [], box = document.body.appendChild(document.createElement("div"));
  let hear = () => {};
  const link = { listen: (each) => { hear = each; }, ask: async ({ id, what, values }) => {
    questions.push({ what, values });
    const [found, ...buffers] = answers(what, values);
    hear({ re: id, status: "applied", found }, buffers);
  } };
  const store = new Store(link), draw = (now) => render(html`<${part} store=${store} view=${{ looks: now }} />`, box);
  draw(looks);
  return { box, questions, draw, find: (selector) => box.querySelector(selector) };
}

test("colours from faint to hot, values in words", () => {
  expect([ink(0), ink(1)]).toEqual(["rgba(63,131,232,0.120)", "rgba(221,112,35,1.000)"]);
  expect([NaN, Infinity, -1, 0, 0.00123].map(inWords)).toEqual(["NaN", "inf", "not measured", "0", "0.00123"]);
  const share = shareOf({ range: [1e-4, 1], log: true });
  expect([1e-5, 1e-4, 1e-2, 1, 5].map(share)).toEqual([0, 0, 0.5, 1, 1]);
  expect(shareOf({ range: [0, 1], log: false })(0.25)).toBe(0.25);
});

test("a column reaches to the next measurement, steps below it are round", () => {
  expect([0, 1, 2, 3].map(placeOf([1, 5, 13]))).toEqual([0, 4 / 20, 12 / 20, 1]);
  expect(ticksOf([0, 100, 200, 300], 440)).toEqual([[0, 0], [100, 0.25], [200, 0.5], [300, 0.75]]);
  expect(ticksOf([7], 440).map(([step]) => step)).toEqual([7]);
  expect([heightOf(1), heightOf(10), heightOf(1000)]).toEqual([60, 180, 640]);
});

test("a histogram shows at least eight bins", () => {
  const shares = Array(20).fill(0);
  shares[10] = 0.75;
  shares[11] = 0.25;
  const { bars, most, top } = barsOf({ shares, edges: shares.map((_, at) => 2 ** (at - 10)) });
  expect([bars.length, most, top.from, top.to]).toEqual([8, 0.75, "1", "2"]);
  expect(barsOf({ shares: [0, 0], edges: [0, 1] })).toBe(null);
});

test("the map is asked for again with each choice and each version, a key chooses a layer", async () => {
  const answers = (what, values) => (what === "layers" ? [{ layers: ["<b>0", "1"], steps: [1, 5], range: [0.1, 1], log: true, hidden: 3, quantities: { gradient: "tip", weights: "norm" } }, Float32Array.of(0.1, 1, 0.5, NaN)]
    : [{ layer: values.layer, step: values.step, what: "gradients", numbers: { "gradient norm": 0.25, "near zero": 0.5 }, edges: [0, 1], shares: [0.5, 0.5] }]);
  const { questions, draw, find } = asked(Layers, answers, { layers: [1, 0] });
  await until(() => expect(find(".field").getAttribute("aria-label")).toContain("2 layers, steps 1 to 5. Last measurement: largest inf, in 1."));
  expect(find(".names").textContent).toBe("<b>01");
  expect(find(".heat-scale").textContent).toContain("not finite");
  find(".field").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  await until(() => expect(find("h3").textContent).toBe("<b>0 · step 5"));
  expect([...find("table").querySelectorAll("td")].map((each) => each.textContent)).toEqual(["gradient norm", "0.25", "near zero", "50 %"]);
  draw({ layers: [2, 0] });
  await until(() => expect(questions.filter(({ what }) => what === "layers").length).toBe(2));
  [...find(".segments").children].find((each) => each.textContent === "weights").click();
  await until(() => expect(questions.at(-1)).toEqual({ what: "layer", values: { quantity: "weights", layer: "<b>0", step: 5 } }));
});

test("evaluations go back and forth, the newest one stays the newest", async () => {
  const steps = [10, 20, 30], answers = (what, { step }) => [{ splits: ["valid"], steps, at: steps.indexOf(step ?? 30), split: "valid", step: step ?? 30, epoch: (step ?? 30) / 10 - 1, samples: 8, correct: 6, names: ["cat", "dog"],
    matrix: { chosen: [0, 1], classes: 2, total: 8, counts: [[4, 0], [2, 2]], sums: [4, 4] }, logged: [],
    worst: [{ loss: 2.5, index: 7, place: 7, target: 0, prediction: 1, picture: "iVBORw0KGgo=" }, { loss: "nan", place: 3, text: "<i>words</i>" }] }];
  const { questions, find, box, draw } = asked(Data, answers, { data: 1 });
  await until(() => expect(find("[aria-live]").textContent).toContain("evaluation 3 of 3 kept · valid · step 30 · epoch 3 · 8 samples"));
  expect(find("h3").textContent).toContain("6 of 8 right, 75.00 %");
  expect([...find(".confusion tbody").querySelectorAll("td")].map((each) => each.textContent)).toEqual(["4", "·", "2", "2"]);
  expect(find("figure img").alt).toBe("sample #7, cat → dog");
  expect(box.querySelectorAll("figure")[1].querySelector("p").textContent).toBe("<i>words</i>");
  find("[aria-label='The evaluation before']").click();
  await until(() => expect(find("[aria-live]").textContent).toContain("evaluation 2 of 3 kept"));
  expect(questions.at(-1).values).toEqual({ split: "", step: 20 });
  draw({ data: 2 });
  await until(() => expect(questions.length).toBe(3));
  expect(captionOf({ loss: 1, place: 3, target: 0.51234, prediction: 2.5 }, null)).toEqual({ loss: "1", where: "no. 4", what: "0.5123 → 2.5" });
});

function part(name, panes) {
  const asked = [], box = document.body.appendChild(document.createElement("div")), link = { listen() {}, plotly: () => new Promise(() => {}) }, store = new Store(link);
  link.ask = async ({ id, ...what }) => {
    asked.push(what);
    if (id) store.hear({ re: id, status: "applied", found: {} }, []);
  };
  store.hear({ v: 1, view: { may_steer: true, run: { name: "net", panes }, state: { name: "running" }, place: {}, commands: {}, tunables: {}, values: {}, hooks: {}, points: {} } }, []);
  render(html`<${Panel} ...${{ store, part: name }} />`, box);
  return { asked, box, store, find: (selector) => box.querySelector(selector) };
}

test("layers and data stand alone as parts, and are read while they are shown", async () => {
  for (const [name, what] of [["layers_pane", "layers"], ["data_pane", "data"]]) {
    const { asked, box, find } = part(name, [what]);
    await until(() => expect(asked).toContainEqual({ ask: "open", tabs: ["looks"] }));
    await until(() => expect(asked.map((each) => each.what)).toContain(what));
    expect([find(`.pane.${what}`) !== null, find(".tnb-head"), find(".tnb-plots"), find("[role=tab]"), find(".message")]).toEqual([true, null, null, null, null]);
    render(null, box);
    await until(() => expect(asked.at(-1)).toEqual({ ask: "open", tabs: [] }));
  }
});

test("a part says which hook it needs, and that its kernel has ended", async () => {
  expect(part("layers_pane", []).find(".pane").textContent).toContain("no LayerStatsHook");
  const { store, find } = part("data_pane", []);
  expect(find(".pane").textContent).toContain("no SamplesHook");
  store.hear({ cut: "The kernel that drew this panel has ended." }, []);
  await until(() => expect(find(".message").textContent).toContain("has ended"));
});
