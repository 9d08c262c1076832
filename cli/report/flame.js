// A flame graph, or an icicle: the root on top, and below each caller what it called, as wide as the bytes it holds.
// Of a comparison, widths are the chosen file's and colours say what changed.
function flames(graphs, isChange) {
  if (graphs.length === 0 || (graphs[0].tree.bytes === 0 && graphs[0].tree.before === 0)) return;
  heading(isChange ? "Who holds it, and what changed" : "Who holds it",
          isChange ? "Each box is a caller, as wide as the bytes that it and what it calls hold at the peak: red grew, blue " +
                         "shrank, grey stayed. A click makes a box as wide as the page."
                   : "Each box is a caller, as wide as the bytes that it and what it calls hold at the live peak. A click makes " +
                         "a box as wide as the page; a click above it goes back.");
  const bar = add(body, "div", undefined, {class: "bar"});
  let graph = graphs[0];
  let side = "bytes";
  let shown = graph.tree;
  let way = [];  // from the root to what is shown
  selector(bar, graphs.map((each) => each.title), (i) => { graph = graphs[i]; zoom(graph.tree, []); });
  if (isChange) selector(bar, ["as wide as after", "as wide as before"], (i) => { side = i === 0 ? "bytes" : "before"; draw(); });
  const search = add(bar, "input", undefined, {type: "search", placeholder: "find", "aria-label": "find in the names"});
  const found = add(bar, "span", undefined, {class: "note"});
  const box = add(body, "div", undefined, {id: "flame"});
  const under = add(body, "div", undefined, {id: "flame-under", class: "note"});
  const rowHeight = 20;

  function hue(name) {
    let hash = 0;
    for (const letter of name.replace(/:\d+\)$/, "")) hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
    return hash % 360;
  }
  function colourOf(node) {
    if (!isChange) return node.name.startsWith("unknown") ? "var(--faint)" : `hsl(${hue(node.name)} 55% var(--flame))`;
    const change = node.bytes - node.before;
    const most = Math.max(graph.tree.bytes, graph.tree.before, 1);
    const strength = Math.min(1, Math.sqrt(Math.abs(change) / most) * 1.6);
    if (change === 0) return "var(--faint)";
    return `color-mix(in srgb, ${change > 0 ? "#e0452c" : "#3b7dd8"} ${Math.round(20 + 80 * strength)}%, var(--faint))`;
  }
  function describe(node) {
    const share = (100 * node[side] / (graph.tree[side] || 1)).toFixed(1) + " %";
    const text = node.name + ": " + size(node[side]) + ", " + share + ", " + node.blocks + " blocks";
    return isChange ? node.name + ": " + size(node.before) + " before, " + size(node.bytes) + " after, " +
                          (node.bytes < node.before ? "" : "+") + size(node.bytes - node.before)
                    : text;
  }
  function zoom(node, above) {
    shown = node;
    way = above;
    draw();
  }
  function depthOf(node) {
    return 1 + Math.max(0, ...node.children.map(depthOf));
  }
  function place(node, left, width, level, above) {
    if (width < 0.0003 && level > way.length) return;
    const made = add(box, "div", node.name, {class: "frame", tabindex: 0, role: "button", title: describe(node),
                     "data-bytes": node[side], "data-level": level});
    made.style.cssText = `left:${100 * left}%;width:${100 * width}%;top:${level * rowHeight}px;background:${colourOf(node)}`;
    if (search.value && node.name.toLowerCase().includes(search.value.toLowerCase())) made.classList.add("found");
    made.addEventListener("click", () => zoom(node, above));
    made.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(node, above); });
    for (const what of ["mouseenter", "focus"]) made.addEventListener(what, () => { under.textContent = describe(node); });
  }
  function walk(node, left, width, level, above) {
    place(node, left, width, level, above);
    let at = left;
    for (const child of node.children) {
      const share = node[side] > 0 ? child[side] / node[side] * width : 0;
      if (share > 0) walk(child, at, share, level + 1, [...above, node]);
      at += share;
    }
  }
  // Of what was found, boxes within others count once.
  function foundBytes(node, text) {
    if (node.name.toLowerCase().includes(text)) return node[side];
    return node.children.reduce((all, child) => all + foundBytes(child, text), 0);
  }
  function draw() {
    box.textContent = "";
    way.forEach((node, level) => place(node, 0, 1, level, way.slice(0, level)));
    walk(shown, 0, 1, way.length, way);
    box.style.height = (way.length + depthOf(shown)) * rowHeight + "px";
    const text = search.value.toLowerCase();
    found.textContent = text ? " " + size(foundBytes(graph.tree, text)) + " in boxes of that name" : "";
    under.textContent = describe(shown);
  }
  search.addEventListener("input", draw);
  draw();
}
