// Which numbers the head shows: the usual ones, or those that a person has chosen, which this browser keeps.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";

const KEY = "trainer_nb pins", MOST = 24, FEW = 12;  // numbers; those without a search field
export const BEST = "best ";  // before the name of a record: its best value

const isList = (found) => Array.isArray(found) && found.length > 0 && found.every((each) => typeof each === "string");

export function keptPins() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return isList(found) ? found.slice(0, MOST) : null;
  } catch { return null; }
}

// What is chosen, null: the usual numbers, and what changes it; other panels of the page, and other pages, follow.
export function usePins() {
  const [pins, setPins] = useState(keptPins);
  useEffect(() => {
    const turned = () => setPins((old) => (JSON.stringify(keptPins()) === JSON.stringify(old) ? old : keptPins()));
    for (const name of [KEY, "storage"]) addEventListener(name, turned);
    turned();  // what was chosen before this was called
    return () => { for (const name of [KEY, "storage"]) removeEventListener(name, turned); };
  }, []);
  const choose = (names) => {
    const wanted = isList(names) ? names.slice(0, MOST) : null;
    try {
      if (wanted) localStorage.setItem(KEY, JSON.stringify(wanted));
      else localStorage.removeItem(KEY);
    } catch { /* storage is off: a reload begins with the usual numbers */ }
    setPins(wanted);
    try { if (JSON.stringify(keptPins()) === JSON.stringify(wanted)) dispatchEvent(new Event(KEY)); } catch { /* of this panel alone */ }
  };
  return [pins, choose];
}

const ICON = "M10 1.5 14.5 6 13.4 7.1 12.6 6.9 9.8 9.7 10 12.2 8.9 13.3 5.9 10.3 2.5 13.7 2.3 13.5 5.7 10.1 2.7 7.1 3.8 6 6.3 6.2 9.1 3.4 8.9 2.6Z";

export const PinButton = ({ open, setOpen, button }) => html`<button type="button" class="pin" ref=${button} title="Choose the numbers of the head" aria-label="Choose the numbers of the head" aria-expanded=${open} onClick=${() => setOpen(!open)}>
  <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true"><path d=${ICON} /></svg></button>`;

// `names`: all that can be chosen, and their labels; `shown`: those that the head shows now; `pins`: what was chosen, be it of another run.
export function PinList({ names, shown, pins, choose, close }) {
  const [text, setText] = useState(""), box = useRef(), wanted = text.trim().toLowerCase(), many = names.length > FEW;
  useEffect(() => box.current.querySelector("input")?.focus(), []);
  const chosen = pins !== null, elsewhere = (pins ?? []).filter((each) => !names.some(({ name }) => name === each));
  const turn = (name) => choose([...(shown.includes(name) ? shown.filter((each) => each !== name) : [...shown, name]), ...elsewhere]);
  const key = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    close();
  };
  return html`<div class="pins" role="group" aria-label="Numbers of the head" ref=${box} onKeyDown=${key}><div class="bar">
      ${many && html`<input type="search" aria-label="Search a number" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} />`}
      <span class="space"></span><button type="button" aria-disabled=${!chosen} title=${chosen ? "Forget what was chosen in this browser" : "These are the usual numbers"} onClick=${chosen ? () => choose(null) : undefined}>Usual numbers</button><button type="button" onClick=${close}>Close</button></div>
    <div class="items">${names.filter(({ label }) => label.toLowerCase().includes(wanted)).map(({ name, label }) => html`<label key=${name} title=${label}><input type="checkbox" checked=${shown.includes(name)} disabled=${shown.length === 1 && shown[0] === name} onChange=${() => turn(name)} /><span>${label}</span></label>`)}</div></div>`;
}
