// Draws the report from its JSON. Every figure of a table is a figure of the JSON.
(() => {
  const shown = report.shown;
  const stateColours = () => ["#0072b2", "#d55e00", getComputedStyle(body).getPropertyValue("--free")]; // live, pending, free
  const partNames = [["live_bytes", "live, as the program requested"], ["rounding_bytes", "+ rounding of it"],
                     ["pending_bytes", "+ freed, a stream is not done with it"],
                     ["inactive_split_bytes", "+ inactive split: free, segment in use"],
                     ["cached_bytes", "+ cached: free segments"], ["reserved_bytes", "= reserved"]];

  const byteAxis = {
    axisLabelWidth: 70,
    valueFormatter: size,
    ticker: (least, most, pixels) => roundTicks(most, pixels / 40).filter((at) => at >= least).map((at) => ({v: at, label: tickText(at)})),
  };

  // ---- The job

  // All in the unit of the largest.
  function partsTable(columns) {
    const unit = unitOf(Math.max(...columns.map(([, parts]) => parts.reserved_bytes)));
    const made = add(add(body, "div", undefined, {class: "scroll"}), "table", undefined, {id: "parts"});
    const head = add(made, "tr");
    add(head, "th", "");
    for (const [name] of columns) add(head, "th", name, {class: "number"});
    for (const [key, name] of partNames) {
      const row = add(made, "tr", undefined, key === "reserved_bytes" ? {class: "total"} : {});
      add(row, "td", name);
      for (const [moment, parts] of columns)
        add(row, "td", size(parts[key], unit), {class: "number", title: parts[key].toLocaleString("en") + " bytes",
              "data-moment": moment, "data-part": key, "data-bytes": parts[key]});
    }
  }

  function job() {
    add(body, "h1", report.dryrun ? "Dry run of " + report.dryrun.program : report.ranks.length === 1 ? "Memory of one process" : "Memory of " + report.ranks.length + " ranks");
    if (report.complaints.length > 0) {
      add(body, "p", report.complaints.length + " of " + report.files + " files were not read:", {class: "note"});
      list(report.complaints);
    }
    if (report.ranks.length < 2) return;
    heading("All ranks");
    partsTable([["all ranks", report.total]]);
    heading("Reserved peak by rank");
    const div = add(body, "div", undefined, {style: "width:100%;height:200px"});
    new Dygraph(div, report.ranks.map((row, i) => [row.rank === null ? i : row.rank, row.reserved_peak_bytes]),
                {labels: ["rank", "reserved peak"], drawPoints: true, strokeWidth: 0, pointSize: 2, includeZero: true,
                 colors: [colours[0]], axes: {y: byteAxis}});
    heading(report.outliers.length === 0 ? "Outliers: none" : "Outliers");
    if (report.outliers.length > 0) {
      table(report.outliers.slice(0, 50).map((i) => report.ranks[i]),
            [["rank", (row) => row.rank, true], ["device", (row) => row.device, true],
             ["reserved peak", (row) => size(row.reserved_peak_bytes), true],
             ["live peak", (row) => size(row.live_peak_bytes), true],
             ["deviation", (row) => row.deviation.toFixed(1), true], ["OOMs", (row) => row.ooms, true],
             ["file", (row) => fileName(row.source)]]);
    }
    if (report.differences.length > 0) {
      heading("Configuration differs");
      table(report.differences, [["option", (row) => row.option], ["here", (row) => row.other],
                                 ["most have", (row) => row.most], ["ranks", (row) => row.count, true],
                                 ["which", (row) => row.ranks.slice(0, 4).join("; ")]]);
    }
    findings(report.findings);
  }

  // What a dry run says, as tables that are made already.
  function dryrun() {
    if (!report.dryrun) return;
    list(report.dryrun.sentences);
    for (const {title, note, columns, rows} of report.dryrun.tables) {
      heading(title, note);
      table(rows, columns.map(([name, isNumber], i) => [name, (row) => row[i], isNumber]));
    }
  }

  function findings(rows) {
    if (rows.length === 0) return;
    heading("Findings");
    table(rows, [["rule", (row) => row.rule], ["evidence", (row) => row.evidence], ["cause", (row) => row.cause],
                 ["what to do", (row) => row.mitigation]]);
  }

  // ---- The timeline

  function timelines() {
    if (report.timelines.length === 0) return;
    heading("Timeline", "What was reserved over time, in layers. Drag to zoom, double-click to see all, point to read.");
    selector(body, report.timelines.map((timeline) => timeline.title), (i) => draw(report.timelines[i]));
    const div = add(body, "div", undefined, {id: "timeline"});
    const labels = add(body, "div", undefined, {id: "labels"});
    let graph = null;
    // dygraphs stacks the last series at the bottom.
    function draw(timeline) {
      if (graph !== null) graph.destroy();
      const order = timeline.series.map((_, i) => i).reverse();
      const unit = timeline.in_events ? 1 : 1e6;
      graph = new Dygraph(
          div, timeline.points.map((point) => [point[0] / unit, ...order.map((i) => point[i + 1])]), {
            labels: [timeline.in_events ? "event" : "seconds", ...order.map((i) => timeline.series[i])],
            colors: order.map((i) => colours[i % colours.length]),
            xlabel: timeline.in_events ? "event" : "seconds",
            stackedGraph: true,
            stepPlot: true,
            fillAlpha: 0.8,
            strokeWidth: 0.5,
            labelsDiv: labels,
            legend: "always",
            axes: {y: byteAxis},
          });
    }
    draw(report.timelines[0]);
  }

  // ---- The map of addresses

  function maps() {
    if (report.maps.every((map) => map.segments.length === 0)) return;
    heading("Addresses", "Every block where it lies, segment after segment from left to right and line after line; a black " +
                             "mark begins a segment. A segment is a range that the allocator has of the driver.");
    const bar = add(body, "div", undefined, {class: "bar"});
    selector(bar, report.maps.map((map) => map.name), (i) => draw(report.maps[i]));
    ["live", "freed, pending", "free"].forEach((name, state) => {
      const one = add(bar, "span", undefined, {class: "legend"});
      add(one, "span", undefined, {class: "swatch", style: "background:" + ["#0072b2", "#d55e00", "var(--free)"][state]});
      add(one, "span", name);
    });
    const whole = add(bar, "span", "", {class: "note whole"});
    const scale = add(body, "div", undefined, {id: "scale", class: "note"});
    const under = add(body, "div", undefined, {id: "under", class: "note"});
    const canvas = add(body, "canvas", undefined, {id: "map", width: 1100, height: 10});
    const lineHeight = 12;
    let rows = [];  // one for each block: [where it begins in all that is drawn, block, segment]
    let perLine = 1;
    let drawn = null;

    // A line's width in round parts.
    function drawScale() {
      scale.textContent = "";
      for (const at of roundTicks(perLine, 4).slice(1))
        add(scale, "span", tickText(at)).style.left = 100 * at / perLine + "%";
      whole.textContent = "one line: " + size(perLine);
    }

    // Segment after segment, as lines of text.
    function draw(map) {
      drawn = map;
      rows = [];
      let total = 0;
      for (const segment of map.segments) {
        for (const block of segment.blocks) {
          rows.push([total, block, segment]);
          total += block[0];
        }
      }
      const lines = Math.min(60, Math.max(1, map.segments.length));
      perLine = Math.ceil(total / lines) || 1;
      canvas.height = lines * lineHeight;
      drawScale();
      const state = stateColours();
      const paint = canvas.getContext("2d");
      paint.clearRect(0, 0, canvas.width, canvas.height);
      let segment = null;
      for (const [begin, block, owner] of rows) {
        paint.fillStyle = state[block[2]];
        for (let at = begin; at < begin + block[0];) {
          const line = Math.floor(at / perLine);
          const end = Math.min(begin + block[0], (line + 1) * perLine);
          const x = (at - line * perLine) / perLine * canvas.width;
          const width = (end - at) / perLine * canvas.width;
          paint.fillRect(x, line * lineHeight, Math.max(0.3, width - 0.5), lineHeight - 2);
          at = end;
        }
        if (owner !== segment) {
          const line = Math.floor(begin / perLine);
          paint.fillStyle = getComputedStyle(body).color;
          paint.fillRect((begin - line * perLine) / perLine * canvas.width, line * lineHeight, 1, lineHeight - 2);
          segment = owner;
        }
      }
      under.textContent = map.left_out_bytes > 0 ? size(map.left_out_bytes) + " are not drawn" : "";
    }

    canvas.addEventListener("mousemove", (event) => {
      const line = Math.floor(event.offsetY * canvas.height / canvas.clientHeight / lineHeight);
      const at = line * perLine + event.offsetX / canvas.clientWidth * perLine;
      let low = 0, high = rows.length;
      while (low + 1 < high) {
        const middle = (low + high) >> 1;
        if (rows[middle][0] <= at) low = middle;
        else high = middle;
      }
      if (rows.length === 0) return;
      const [, [bytes, requested, state, site], segment] = rows[low];
      under.textContent = ["live", "freed, pending", "free"][state] + " " + size(bytes) +
          (state < 2 ? ", requested " + requested.toLocaleString("en") + " by " + report.site_names[site] : "") +
          "; segment " + segment.address + " of " + size(segment.bytes) + ", stream " + segment.stream;
    });
    draw(report.maps[0]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(drawn));
  }

  // ---- One rank

  function deviceTable() {
    const device = shown.device_memory;
    if (device === null) return;
    heading("The device", "What of the device's memory is not the allocator's.");
    const rest = Math.max(0, device.total_bytes - device.reserved_bytes);
    const others = device.other_bytes === null ? null : Math.min(rest, device.other_bytes);
    const rows = others === null ? [["+ others and free (not told apart)", rest]]
                                 : [["+ other processes, contexts, libraries", others], ["+ free on the device", rest - others]];
    table([["reserved", device.reserved_bytes], ...rows],
          [["", (row) => row[0]], ["bytes", (row) => row[1].toLocaleString("en"), true], ["", (row) => size(row[1]), true]],
          ["= device", (device.reserved_bytes + rest).toLocaleString("en"), size(device.reserved_bytes + rest)]);
  }

  function annotationsTable() {
    const rows = Object.entries(shown.annotations).filter(([, bytes]) => bytes > 0);
    if (rows.length === 0) return;
    heading("As annotated");
    table(rows, [["", (row) => row[0]], ["bytes", (row) => row[1].toLocaleString("en"), true], ["", (row) => size(row[1]), true]]);
  }

  function holders(title, rows) {
    if (rows.length === 0) return;
    heading(title, "Stranded: reserved and free here, where no other pool or stream takes it without a wait or a release.");
    table(rows, [["", (row) => row.name], ["segments", (row) => row.segments, true],
                 ["reserved", (row) => size(row.reserved_bytes), true], ["active", (row) => size(row.active_bytes), true],
                 ["stranded", (row) => size(row.stranded_bytes), true],
                 ["largest free", (row) => size(row.largest_free_bytes), true]],
          ["=", sum(rows, "segments"), size(sum(rows, "reserved_bytes")), size(sum(rows, "active_bytes")),
           size(sum(rows, "stranded_bytes")), ""]);
  }

  function classes(rows, when) {
    if (rows.length === 0) return;
    heading("By size of request, " + when, "Live: what the program asked for. Rounding: what blocks have above that.");
    const total = sum(rows, "live_bytes");
    let running = 0;
    table(rows, [["up to", (row) => tickText(row.up_to_bytes), true], ["blocks", (row) => row.blocks, true],
                 ["live", (row) => size(row.live_bytes), true], ["rounding", (row) => size(row.rounding_bytes), true],
                 ["cumulative", (row) => size(running += row.live_bytes), true],
                 ["", () => (100 * running / (total || 1)).toFixed(1) + " %", true]],
          ["=", sum(rows, "blocks"), size(total), size(sum(rows, "rounding_bytes")), "", ""]);
  }

  function sites(rows, when) {
    if (rows.length === 0) return;
    heading("By call site, " + when, "The line of the program that allocated, not counting lines of libraries below it.");
    const most = rows.slice(0, 30);
    const rest = rows.slice(30);
    if (rest.length > 0)
      most.push({site: rest.length + " others", blocks: sum(rest, "blocks"), live_bytes: sum(rest, "live_bytes")});
    table(most, [["call site", (row) => row.site], ["blocks", (row) => row.blocks, true],
                 ["live", (row) => size(row.live_bytes), true]],
          ["=", sum(rows, "blocks"), size(sum(rows, "live_bytes"))]);
  }

  function rank() {
    if (shown === null) return;
    heading((shown.rank === null ? "Device " : "Rank " + shown.rank + ", device ") + shown.device +
            (shown.hardware ? " (" + shown.hardware + ")" : ""), report.dryrun ? "" : "From " + fileName(shown.source) + ".");
    list([...shown.verdict, ...shown.notes]);
    partsTable(shown.moments.map((moment) => [moment.name, moment.parts]));
    flames(report.flames, false);
    timelines();
    maps();
    deviceTable();
    annotationsTable();
    const live = shown.moments.length > 1 ? shown.moments[1] : shown.moments[0];
    const at = (moment) => moment.name === "now" ? "now" : "at the " + moment.name;
    classes(live.classes, at(live));
    sites(live.sites, at(live));
    holders("By pool, " + at(shown.moments[0]), shown.moments[0].pools);
    holders("By stream, " + at(shown.moments[0]), shown.moments[0].streams);
    heading("Fragmentation", "The external index is the share of free bytes outside of the largest free range: 0, where one " +
                                 "range has all.");
    const fragmentation = shown.fragmentation;
    add(body, "p", "External index " + fragmentation.external_index.toFixed(3) + ": of " +
                       size(fragmentation.free_bytes) + " free, the largest range has " +
                       size(fragmentation.largest_free_bytes) + ".");
    table([["within what is reserved", "within"], ["now, or with new memory of the device", "now"],
           ["after a trim of cached memory", "after_trim"], ["after a trim and evicting unpinned regions", "after_evict"]]
              .map(([name, key]) => ({name, most: fragmentation[key].largest_bytes})),
          [["largest request that fits", (row) => row.name],
           ["", (row) => row.most === null ? "unknown" : size(row.most), true]]);
    const tried = shown.rungs.filter((rung) => rung.hits > 0 || rung.time_ns > 0);
    if (tried.length > 0) {
      heading("The ladder: what was tried when memory was short",
              "A request that its heap cannot serve goes from rung to rung, the dearer ones last.");
      table(tried, [["rung", (rung) => rung.name], ["served", (rung) => rung.hits, true],
                    ["ms", (rung) => (rung.time_ns / 1e6).toFixed(3), true]]);
    }
    if (shown.growth.rows.length > 0) {
      heading("Grows with every step (" + shown.growth.steps + " steps, " + shown.growth.found + ")");
      table(shown.growth.rows, [["", (row) => row.name], ["a step", (row) => size(row.bytes_per_step), true],
                                ["first", (row) => size(row.first_bytes), true], ["last", (row) => size(row.last_bytes), true]]);
    }
    if (report.ranks.length < 2) findings(shown.findings);
  }

  job();
  dryrun();
  rank();
  ending();
})();
