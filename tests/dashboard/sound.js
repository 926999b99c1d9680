// Returns what is not sound about the page: weak text, controls without a name, what is too wide.
() => {
  const faults = [];

  // Contrast by the rules of WCAG 2: 4.5 to 1 for every text.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (css) => {
    if (!known.has(css)) known.set(css, drawn(css));
    return known.get(css);
  };
  const drawn = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => ((c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const colour = rgba(getComputedStyle(one).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || !node.checkVisibility() || node.closest(".hidden, .hidden-until-focus, noscript, dialog")) continue;
    const style = getComputedStyle(node);
    const a = light(rgba(node.closest("svg") ? style.fill : style.color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faults.push(`weak: ${node.tagName}.${node.className} "${text.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }

  const controls = "a[href], button, input:not([type=hidden]), select, textarea";
  for (const one of document.querySelectorAll(controls)) {
    const named = one.textContent.trim() || one.getAttribute("aria-label") || one.labels?.length;
    if (one.checkVisibility() && !named) faults.push(`nameless: ${one.outerHTML.slice(0, 120)}`);
  }

  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
    faults.push(`too wide: ${wide.slice(0, 3).map((one) => one.outerHTML.slice(0, 80)).join(" ")}`);
  }
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one heading");
  if (document.querySelector("[style]")) faults.push("a style in an attribute");
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) faults.push("an id twice");
  return [...new Set(faults)];
}
