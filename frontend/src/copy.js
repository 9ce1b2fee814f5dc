// A button that copies a text.
import { html } from "htm/preact";
import { useEffect, useRef, useState } from "preact/hooks";

// `text` makes it, or promises it. Where nothing may be copied (no https) it is shown and selected, and the person copies it.
export function Copy({ label, text }) {
  const [said, setSaid] = useState(""), [shown, setShown] = useState(null), box = useRef(), timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => { box.current?.focus(); box.current?.select(); }, [shown]);
  const copy = async () => {
    let found;
    clearTimeout(timer.current);
    try {
      found = await text();
      await navigator.clipboard.writeText(found);
      setShown(null);
      setSaid("Copied");
      timer.current = setTimeout(() => setSaid(""), 3000);
    } catch (error) {
      setShown(found ?? null);
      setSaid(found === undefined ? error.message : "Press Ctrl+C");
    }
  };
  return html`<button type="button" class="copy" onClick=${copy}>${label}</button><span class="quiet" role="status">${said}</span>
    ${shown !== null && html`<textarea class="copied" readonly rows="8" aria-label=${label} ref=${box} value=${shown}></textarea>`}`;
}
