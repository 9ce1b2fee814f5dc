// What a tab asks for by itself: again after each change of what is wanted, and of the version of what is there.
import { useEffect, useState } from "preact/hooks";

export function useLook(store, what, values, version) {
  const [answer, setAnswer] = useState(null), wanted = JSON.stringify(values);
  useEffect(() => {
    let over = false;
    if (!what) setAnswer(null);
    else store.look(what, JSON.parse(wanted)).then((found) => { if (!over) setAnswer(found); });
    return () => { over = true; };
  }, [store, what, wanted, version]);
  return answer;
}
