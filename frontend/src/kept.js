// What a person has chosen, and this tab of the browser keeps over a reload.
import { useState } from "preact/hooks";

function keptOf(key, allowed) {
  try {
    const found = JSON.parse(sessionStorage.getItem(key));
    return allowed.includes(found) ? found : undefined;
  } catch { return undefined; }
}

// As useState; `allowed`: the values that may come back.
export function useKept(name, usual, allowed) {
  const key = `trainer_nb ${name}`, [value, setValue] = useState(() => keptOf(key, allowed) ?? usual);
  const choose = (wanted) => {
    setValue(wanted);
    try { sessionStorage.setItem(key, JSON.stringify(wanted)); } catch { /* storage is off: a reload begins with the usual one */ }
  };
  return [value, choose];
}
