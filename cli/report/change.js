// Draws the page of a comparison.
(() => {
  const signed = (bytes) => (bytes < 0 ? "" : "+") + size(bytes);
  const columns = [["", (row) => row.name], ["before", (row) => size(row.before_bytes), true],
                   ["after", (row) => size(row.after_bytes), true], ["change", (row) => signed(row.change_bytes), true]];
  add(body, "h1", "What changed");
  add(body, "p", "Before: " + fileName(report.before) + "; after: " + fileName(report.after), {class: "note"});
  list(report.exceeded.map((text) => "EXCEEDED: " + text));
  table(report.peaks, columns);
  flames(report.flames, true);
  heading("What is reserved at its peak",
          "Live: what the program asked for. Rounding: what blocks have above that. Pending: freed, and a stream is not done " +
              "with it. Inactive split: free, in segments that are partly in use. Cached: free segments.");
  const unit = unitOf(Math.max(...report.parts.map((row) => Math.max(row.before_bytes, row.after_bytes))));
  table(report.parts, [["", (row) => row.name], ["before", (row) => size(row.before_bytes, unit), true],
                       ["after", (row) => size(row.after_bytes, unit), true],
                       ["change", (row) => (row.change_bytes < 0 ? "" : "+") + size(row.change_bytes, unit), true]]);
  if (report.sites.length > 0) {
    heading("By call site, at the live peak", "The line of the program that allocated; what did not change is left out.");
    table(report.sites.slice(0, 50), columns);
  }
  if (report.classes.length > 0) {
    heading("By size of request, at the live peak");
    table(report.classes, columns);
  }
  ending();
})();
