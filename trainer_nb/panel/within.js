// Wait until an element is in the page, inside of what the selector names.
// Stands before a script of its own in one file.
function whenIn(el, selector, then) {
  const found = el.closest(selector);
  if (found) return then(found);
  let stop = () => {};
  const frame = requestAnimationFrame(() => { stop = whenIn(el, selector, then); });
  return () => { cancelAnimationFrame(frame); stop(); };
}
