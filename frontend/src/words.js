// Numbers and states in words. Those of commands, tunables and hooks come from the run.

export const count = (number) => (Number.isFinite(number) ? number.toLocaleString("en-US") : "–");

// A number in few characters: four digits of it.
export function short(value) {
  if (typeof value !== "number") return value ?? "–";  // "nan", "inf"
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e6)) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  return size >= 1000 ? value.toLocaleString("en-US", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(4)));
}

// A value as it is typed.
export function plain(value) {
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value), six = Number(value.toPrecision(6));
  return size && (size < 1e-3 || size >= 1e6) ? six.toExponential().replace("e+", "e") : String(six);
}

export function clock(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const [hours, minutes, rest] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// The epoch, from 1, of a place so many batches into it; before the first batch it is the one that has ended.
export const epochOf = ({ epoch, batch }) => (epoch === undefined ? undefined : Math.max(1, batch ? epoch + 1 : epoch));

// The epoch, from 1, in which a run is after this many of them; a whole number is the end of that epoch.
export const epochAfter = (done) => Math.max(1, Math.ceil(done - 1e-6));

// A number of a table: as many decimals in each row, so that they stand below each other.
export function even(value) {
  if (typeof value !== "number") return value ?? "–";
  const size = Math.abs(value);
  if (size && (size < 1e-3 || size >= 1e5)) return value.toExponential(2).replace("e+", "e");
  return size && size < 0.01 ? value.toPrecision(3) : value.toFixed(size < 100 ? 4 : 1);
}

export function duration(seconds) {
  if (seconds < 0.05) return `${(1000 * seconds).toFixed(1)} ms`;
  return seconds < 1000 ? `${seconds.toFixed(1)} s` : clock(seconds);
}

export const capital = (word) => word.slice(0, 1).toUpperCase() + word.slice(1);

// How the run stands, as one word of the state or of its process.
export const standing = ({ state }) => (state.searching ? "searching" : "") || state.word || (state.standing && state.standing !== "ended" ? state.standing : state.name);

const COLOURS = { running: "running", searching: "running", detached: "running", idle: "idle", paused: "paused", stopped: "paused", interrupted: "paused", finished: "finished" };
// Why the weights of a run are of no use, or "": a loss that is not finite, a divergence that has not ended.
export const brokenBy = (view) => broken(view)?.words ?? "";

// The step since when they are of no use, and why; nothing if they are fine.
export function broken({ numbers = {}, alerts = {} }) {
  const [name, bad] = Object.entries(numbers).find(([each, { bad_since: since }]) => each.startsWith("train/") && since !== undefined) ?? [];
  if (bad) return { step: bad.bad_since, words: `${name} is not finite since step ${count(bad.bad_since)}` };
  const alert = Object.values(alerts).find(({ kind, ended }) => ["divergence", "not_finite"].includes(kind) && ended === undefined);
  return alert && { step: alert.step, words: `it diverged at step ${count(alert.step)}` };
}

export function colour(view) {
  const { state } = view;
  if (state.name === "finished" && brokenBy(view)) return "error";
  if (state.failed || state.what || ["crashed", "lost", "gone"].includes(state.standing)) return state.name === "running" && !state.standing ? "running" : "error";
  return COLOURS[standing({ state })] ?? COLOURS[state.name] ?? "error";
}

const PHASES = { iterate: "loading data", train: "train", after_train: "train", valid: "evaluate", check: "evaluate", after_valid: "evaluate" };
export function phase({ state, place }) {
  if (state.searching) return `rate ${state.searching}`;
  if (state.name !== "running") return "";
  return place.eval_batch === undefined ? PHASES[place.phase] ?? "" : `evaluate ${count(place.eval_batch)}`;
}

// Whether a record was measured with an average of the weights.
export const isAveraged = ({ averaged = [] }, name) => averaged.includes(name.split("/")[0]);

// Entries of the journal, or alerts, by number: the newest first.
export const newestOf = (entries) => Object.entries(entries ?? {}).sort(([one], [other]) => other - one).map(([number, entry]) => ({ number, ...entry }));
export const newest = ({ journal }) => newestOf(journal?.entries);

// The newest alert that goes on, until something was changed after it.
export function alertOf(view) {
  const found = newestOf(view.alerts).find(({ ended }) => ended === undefined);
  const answered = found && newest(view).some(({ number, kind }) => ["tune", "hook", "rewind", "assign", "skip"].includes(kind) && number > (found.entries ?? 0));
  return answered ? undefined : found;
}

export function entryText({ kind, what, change, reason }) {
  const words = [kind, what === kind ? "" : what, change].filter((each) => each !== undefined && each !== "").join(" ");
  return reason ? `${words} (${reason})` : words;
}

export function message(view) {
  const { state, place } = view, step = `step ${count(place.step)}`;
  if (state.notice) return state.notice;
  if (state.searching) return `Searching for a rate: ${state.searching} tried. The run stands at ${step}; afterwards weights, data order and random streams are put back.`;
  if (state.what && state.name !== "running") return `Failed after ${step}: ${state.what}. ${state.dead_end ?? ""}`.trim();
  const saved = view.saved ? ` Last checkpoint: step ${count(view.saved.step)}.` : "", broken = brokenBy(view);
  if (state.name === "paused") return `Paused after ${step}${state.paused_by ? `: ${state.paused_by}` : ""}.${saved}`;
  if (state.name === "finished") return `Finished after ${step}${broken ? `, but ${broken}. ${view.run.can_rewind ? "Rewind to a state before it" : "Start again"}, with a lower rate.` : "."}${broken ? "" : saved}`;
  if (["stopped", "interrupted"].includes(state.name)) return `${capital(state.name)} after ${step}.`;
  if (state.name === "idle") return "Not training now.";
  const alert = alertOf(view), last = newest(view).find((each) => !each.undone);
  if (alert) return `${alert.title} at step ${count(alert.step)}: ${alert.seen} ${alert.advice ?? ""}`.replaceAll("`", "").trim();
  return (last ? `Last change: ${entryText(last)}.` : "No manual changes yet.") + saved;
}

const THOUSANDS = /^[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?$/;  // any other comma may mean a decimal point

// What a text in a box means; an Error says what the box takes.
export function read(text, rule) {
  const words = text.trim().toLowerCase(), now = rule.waits ? rule.pending : rule.value;
  if (rule.optional && ["none", "off", rule.none].includes(words)) return null;
  if (rule.kind === "str") return text;
  const [, factor, digits] = words.match(/^([*/]?)\s*(.*)$/), number = Number(THOUSANDS.test(digits) ? digits.replaceAll(",", "") : digits);
  if (digits === "" || !Number.isFinite(number)) throw new Error(`${text} is not a number: the box takes 0.01, 3e-4, *0.5, /3${rule.optional ? `, or ${rule.none || "none"}` : ""}`);
  const value = factor === "*" ? now * number : factor === "/" ? now / number : number;
  if (Math.abs(value) >= 2 ** 63) throw new Error(`${text} is beyond 9.2e18, the largest that the box takes`);  // whole numbers have 64 bits
  return value;
}

// The record of a curve, and whether it is a branch, which a rewind took back: its name is that of the record, a line break and a number.
export const recordOf = (name) => name.split("\n")[0];
export const isBranch = (name) => name.includes("\n");

// The records of a run, without those of several optimizers that have no name: they are the last one's, which is there by its name.
export function ownNames(names) {
  const several = names.some((name) => name.startsWith("lr."));
  return several ? names.filter((name) => !["lr", "grad_norm"].includes(name) && !/^train\/[^/]+$/.test(name)) : names;
}
