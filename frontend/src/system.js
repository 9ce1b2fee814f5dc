// Use of processors, memory, disk and GPU of the machine that trains, as small curves.
import { html } from "htm/preact";
import { capital, clock } from "./words.js";

const WIDTH = 240, HEIGHT = 36;
const plain = (value) => String(Number(value.toFixed(value < 100 ? 1 : 0)));

// Points of a curve in a box of 240 by 36, newest at the right; a stretch without any is a gap.
export function pathOf(points, most) {
  const found = Object.entries(points).map(([at, value]) => [Number(at), value]).sort(([one], [other]) => one - other);
  if (!found.length) return "";
  const first = found[0][0], last = found.at(-1)[0], top = most ?? Math.max(...found.map(([, value]) => value), 1e-9);
  const x = (at) => (last === first ? WIDTH : (WIDTH * (at - first)) / (last - first)), y = (value) => HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, value / top);
  return found.map(([at, value], number) => `${number && at - found[number - 1][0] <= 3 ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
}

// What a curve says in words: the newest value, of how much, and between which it was.
export function wordsOf({ unit, now, most, points }) {
  const values = Object.values(points), share = unit === "%";
  const newest = now === undefined ? "–" : `${plain(now)} ${unit}`;
  return { newest: most === undefined || share ? newest : `${newest} of ${plain(most)} ${unit}`, range: values.length ? `${plain(Math.min(...values))} to ${plain(Math.max(...values))} ${unit}` : "" };
}

export function System({ view }) {
  const { figures = {}, every, missing } = view.system ?? {}, rows = Object.entries(figures).sort(([, { at: one }], [, { at: other }]) => one - other);
  if (!rows.length) return html`<p class="quiet">The first figures come within two seconds.</p>`;
  const slots = rows.flatMap(([, { points }]) => Object.keys(points).map(Number)), span = every * (Math.max(...slots) - Math.min(...slots) + 1);
  return html`<p class="quiet">The machine that trains, in the last ${clock(span)}${every > 1 ? `; a point is the mean of ${every} s` : ", once a second"}.</p>
    <div class="figures">${rows.map(([name, one]) => {
      const { newest, range } = wordsOf(one);
      return html`<figure key=${name}><figcaption><b>${capital(one.label)}</b> <span>${newest}</span></figcaption>
        <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${`${one.label}: ${newest}, ${range}`}><path d=${pathOf(one.points, one.most)} /></svg>
        <span class="quiet">${range}</span></figure>`;
    })}</div>${missing && html`<p class="quiet">${missing}</p>`}`;
}
