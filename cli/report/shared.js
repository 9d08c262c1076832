// What the pages share: the report's JSON, elements, tables, and bytes as people read them.
"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const body = document.body;
// Told apart by people who do not see all colours (Okabe and Ito).
const colours = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999",
                 "#332288", "#bbbbbb"];
const units = ["B", "KiB", "MiB", "GiB", "TiB"];

function unitOf(bytes) {
  let unit = 0;
  for (bytes = Math.abs(bytes); bytes >= 1024 && unit < 4; bytes /= 1024) ++unit;
  return unit;
}

function size(bytes, unit = unitOf(bytes)) {
  return (unit === 0 ? bytes : (bytes / 2 ** (10 * unit)).toFixed(unit > 2 ? 3 : 1)) + " " + units[unit];
}

// Of a scale: no digits that say nothing.
function tickText(bytes) {
  const unit = unitOf(bytes);
  return Number((bytes / 2 ** (10 * unit)).toFixed(2)) + " " + units[unit];
}

// Round steps in powers of two's own units: 1, 2, 4, ... 512 MiB.
function roundTicks(most, wanted) {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, most / Math.max(1, wanted))));
  const out = [];
  for (let at = 0; at <= most; at += step) out.push(at);
  return out;
}

function add(parent, tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

// With a sentence that says what its words mean.
function heading(text, note) {
  add(body, "h2", text);
  if (note) add(body, "p", note, {class: "note"});
}

function fileName(path) {
  return path.split("/").pop();
}

// Of a table: [title, value of a row, is a number].
function table(rows, columns, total) {
  const made = add(add(body, "div", undefined, {class: "scroll"}), "table");
  const head = add(made, "tr");
  for (const [title, , number] of columns) add(head, "th", title, number ? {class: "number"} : {});
  const line = (row, values) => {
    for (let i = 0; i < columns.length; ++i)
      add(row, "td", values[i], columns[i][2] ? {class: "number"} : {});
  };
  for (const row of rows) line(add(made, "tr"), columns.map(([, value]) => value(row)));
  if (total) line(add(made, "tr", undefined, {class: "total"}), total);
  return made;
}
const sum = (rows, name) => rows.reduce((all, row) => all + row[name], 0);

function list(texts) {
  const made = add(body, "ul");
  for (const text of texts) add(made, "li", text);
}

function selector(parent, names, choose) {
  const made = add(parent, "select", undefined, {"aria-label": "what is shown"});
  names.forEach((name, i) => add(made, "option", name, {value: i}));
  made.addEventListener("change", () => choose(Number(made.value)));
  return made;
}

function ending() {
  add(body, "footer", body.dataset.made);
  body.dataset.drawn = "yes";
}
