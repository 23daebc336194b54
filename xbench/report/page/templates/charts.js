"use strict";

/** The charts: drawn by plotly.js when they come into view, all with the same dataset and the same models. */
(() => {
  const { element, estimate, fill, percent } = report;
  const data = report.data("chart-data");
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down"];
  const GLYPHS = ["\u25cf", "\u25a0", "\u25c6", "\u25b2", "\u271a", "\u2716", "\u2605", "\u25bc"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const state = { dataset: 0, hidden: new Set(), paper: false };
  // Of a sheet of A4 or letter between the margins, in the pixels of style sheets.
  const PAPER = 660;
  const charts = new Map();

  // Looks

  const probe = element("span", { hidden: true });
  document.body.append(probe);

  /** Resolves a colour of the style sheet in the present theme. */
  function colour(name, opacity = 1) {
    probe.style.color = `var(--${name})`;
    const resolved = getComputedStyle(probe).color;
    return opacity === 1 ? resolved : resolved.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
  }

  function look(label) {
    const place = Math.max(0, data.models.indexOf(label));
    return {
      colour: `m${data.colours[place]}`,
      symbol: SYMBOLS[place % SYMBOLS.length],
      glyph: GLYPHS[place % GLYPHS.length],
      dash: DASHES[place % DASHES.length],
    };
  }

  function axis(title, more = {}) {
    return {
      title: { text: title, standoff: 10 },
      gridcolor: colour("line"),
      linecolor: colour("edge"),
      zeroline: false,
      fixedrange: true,
      automargin: true,
      ...more,
    };
  }

  function layout(more) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("ink") },
      hoverlabel: { bgcolor: colour("raised"), bordercolor: colour("edge"), font: { color: colour("ink") }, align: "left" },
      margin: { l: 8, r: 16, t: 12, b: 8 },
      ...(state.paper ? { width: PAPER } : {}),
      dragmode: false,
      hovermode: "closest",
      showlegend: false,
      ...more,
    };
  }

  const topLegend = () => ({ orientation: "h", x: 0, y: 1.02, yanchor: "bottom", xanchor: "left", font: { size: 12 } });
  const times100 = (value) => (value === null || value === undefined ? null : 100 * value);
  const dataset = () => data.datasets[state.dataset];
  const shownRuns = () => dataset().runs.filter((run) => !state.hidden.has(run.label));
  const widthOf = (plot) => (state.paper ? PAPER : plot.clientWidth);
  const narrow = (plot) => widthOf(plot) < 560;

  /** Breaks a label before its bracket, so that names leave room for bars on a phone. */
  function wrapped(label, plot) {
    const text = label.replaceAll("<", "&lt;");
    return narrow(plot) ? text.replace(" (", "<br>(") : text;
  }

  const safe = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

  function bars(estimates, values) {
    const known = estimates.map((entry) => (entry[1] === null ? [entry[0], entry[0], entry[0]] : entry));
    return {
      type: "data",
      symmetric: false,
      array: known.map((entry) => times100(entry[2] - entry[0])),
      arrayminus: known.map((entry) => times100(entry[0] - entry[1])),
      thickness: 1.5,
      width: 3,
      ...values,
    };
  }

  function byName(macro, number) {
    return macro[number] ?? [null, null, null];
  }

  // Charts. Each returns what plotly draws, the same as a table, and a sentence to read under it.

  function overview(plot) {
    const number = document.getElementById("overview-number").value;
    const title = data.numbers[number].title;
    const runs = shownRuns().filter((run) => byName(run.macro, number)[0] !== null);
    const best = [...runs].sort((a, b) => byName(b.macro, number)[0] - byName(a.macro, number)[0]);
    const references = dataset().references.filter((reference) => byName(reference.macro, number)[0] !== null);
    const rows = [...best.map((run) => ({ ...run, title: run.label })), ...references];
    const traces = rows.map((row) => {
      const values = byName(row.macro, number);
      const ink = row.label ? colour(look(row.label).colour) : colour("quiet");
      return {
        type: "scatter",
        mode: "markers",
        x: [times100(values[0])],
        y: [wrapped(row.title, plot)],
        error_x: bars([values], { color: ink }),
        marker: { color: row.label ? ink : "rgba(0,0,0,0)", symbol: row.label ? look(row.label).symbol : "circle", size: 10, line: { color: ink, width: 2 } },
        hovertemplate: `${safe(row.title)}<br>${title}: ${estimate(values)} %<extra></extra>`,
      };
    });
    const lines = references.map((reference) => ({
      type: "line",
      yref: "paper",
      y0: 0,
      y1: 1,
      x0: times100(byName(reference.macro, number)[0]),
      x1: times100(byName(reference.macro, number)[0]),
      line: { color: colour("edge"), width: 1, dash: reference.kind === "floor" ? "dash" : "dot" },
    }));
    return {
      traces,
      layout: layout({
        height: 90 + (narrow(plot) ? 42 : 34) * rows.length,
        shapes: lines,
        xaxis: axis(`${title}, %`, { rangemode: "tozero" }),
        yaxis: axis("", { autorange: "reversed", type: "category", gridcolor: "rgba(0,0,0,0)" }),
      }),
      table: [["", `${title}, % [95 % interval]`], ...rows.map((row) => [row.title, estimate(byName(row.macro, number))])],
      reading: `${data.numbers[number].meaning} Means over findings. Open circles are floors (dashed lines) and ceilings (dotted).`,
    };
  }

  const THRESHOLDS = [
    ["dice_fixed", "at 0.5", "circle-open"],
    ["dice_cross_fitted", "cross-fitted", "circle"],
    ["dice_best", "best on the same images", "diamond-open"],
  ];

  function gap(plot) {
    const runs = shownRuns();
    const names = runs.map((run) => wrapped(run.label, plot));
    const joined = runs.map((run, place) => ({
      type: "scatter",
      mode: "lines",
      x: THRESHOLDS.map(([number]) => times100(byName(run.macro, number)[0])),
      y: THRESHOLDS.map(() => names[place]),
      line: { color: colour("edge"), width: 2 },
      hoverinfo: "skip",
      showlegend: false,
    }));
    const marks = THRESHOLDS.map(([number, title, symbol]) => ({
      type: "scatter",
      mode: "markers",
      name: title,
      x: runs.map((run) => times100(byName(run.macro, number)[0])),
      y: names,
      marker: { symbol, size: 12, color: colour("accent"), line: { width: 2 } },
      hovertemplate: runs.map((run) => `${safe(run.label)}<br>Dice ${title}: ${estimate(byName(run.macro, number))} %<extra></extra>`),
    }));
    const whole = dataset().references.find((reference) => reference.title === "Whole image");
    const level = whole ? times100(byName(whole.macro, "dice_best")[0]) : null;
    return {
      traces: [...joined, ...marks],
      layout: layout({
        height: 130 + 42 * runs.length,
        showlegend: true,
        legend: topLegend(),
        margin: { l: 8, r: 16, t: 30, b: 8 },
        shapes: level === null ? [] : [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: level, x1: level, line: { color: colour("caution"), width: 2, dash: "dash" } }],
        xaxis: axis("Dice, %", { rangemode: "tozero" }),
        yaxis: axis("", { autorange: "reversed", type: "category", gridcolor: "rgba(0,0,0,0)" }),
      }),
      table: [
        ["", ...THRESHOLDS.map(([, title]) => `Dice ${title}, %`)],
        ...runs.map((run) => [run.label, ...THRESHOLDS.map(([number]) => estimate(byName(run.macro, number)))]),
        ...(whole ? [["Whole image", ...THRESHOLDS.map(([number]) => estimate(byName(whole.macro, number)))]] : []),
      ],
      reading: level === null ? "" : `Dashed: marking the whole image scores ${level.toFixed(2)} % without looking at it.`,
    };
  }

  /** Finds whose point of the correlation it is: labels there begin with the model's title. */
  function owner(label) {
    const title = label.split(": ")[0];
    const own = data.models.filter((model) => model === title || model.startsWith(`${title} (`));
    return own.find((model) => model.includes("official")) ?? own[0] ?? title;
  }

  function correlation(plot) {
    const chosen = data.correlations[Number(document.getElementById("correlation-scope").value)];
    if (!chosen) return null;
    const points = chosen.points.filter(([label]) => !state.hidden.has(owner(label)));
    const ofModels = chosen.scope === "models";
    const traces = [{
      type: "scatter",
      mode: ofModels && !narrow(plot) ? "markers+text" : "markers",
      x: points.map((point) => times100(point[1])),
      y: points.map((point) => times100(point[2])),
      text: points.map((point) => safe(point[0])),
      textposition: "top center",
      cliponaxis: false,
      marker: {
        color: points.map((point) => colour(look(owner(point[0])).colour)),
        symbol: points.map((point) => look(owner(point[0])).symbol),
        size: ofModels ? 12 : 7,
        opacity: ofModels ? 1 : 0.75,
      },
      hovertemplate: "%{text}<br>AUROC %{x:.2f} %<br>Pointing game %{y:.2f} %<extra></extra>",
    }];
    if (chosen.slope !== null) {
      const ends = [Math.min(...chosen.points.map((point) => point[1])), Math.max(...chosen.points.map((point) => point[1]))];
      traces.unshift({
        type: "scatter",
        mode: "lines",
        x: ends.map(times100),
        y: ends.map((x) => times100(chosen.intercept + chosen.slope * x)),
        line: { color: colour("quiet"), width: 2, dash: "dash" },
        hoverinfo: "skip",
      });
    }
    const p = chosen.p === null ? "" : chosen.p < 0.001 ? ", p < 0.001" : `, p = ${chosen.p.toFixed(3)}`;
    return {
      traces,
      layout: layout({
        height: narrow(plot) ? 380 : 480,
        xaxis: axis("AUROC, %"),
        yaxis: axis("Pointing game, %"),
      }),
      table: [["", "AUROC, %", "Pointing game, %"], ...points.map(([label, x, y]) => [label, percent(x), percent(y)])],
      reading: chosen.r_squared === null
        ? `${chosen.points.length} ${chosen.points.length === 1 ? "point" : "points"}: too few, or too much alike, for a line.`
        : `The line accounts for R\u00b2 = ${chosen.r_squared.toFixed(2)} of the variance (${chosen.points.length} points${p}).` +
          (ofModels ? "" : " Points of one model or dataset are not independent, so p is too small.") +
          " It is fitted to all points, hidden ones too.",
    };
  }

  function curves(plot) {
    const runs = shownRuns().filter((run) => run.curve.length);
    const slider = document.getElementById("threshold");
    const count = Math.max(2, ...runs.map((run) => run.curve.length));
    if (Number(slider.max) !== count - 1) {
      const share = Number(slider.value) / Number(slider.max);
      slider.max = count - 1;
      slider.value = Math.round(share * (count - 1));
    }
    const threshold = Number(slider.value) / (count - 1);
    document.getElementById("threshold-value").textContent = threshold.toFixed(2);
    const bands = runs.filter((run) => run.curve.every((point) => point[1] !== null)).map((run) => ({
      type: "scatter",
      mode: "lines",
      x: [...run.thresholds, ...[...run.thresholds].reverse()],
      y: [...run.curve.map((point) => times100(point[1])), ...run.curve.map((point) => times100(point[2])).reverse()],
      fill: "toself",
      fillcolor: colour(look(run.label).colour, 0.13),
      line: { width: 0 },
      hoverinfo: "skip",
    }));
    const lines = runs.map((run) => ({
      type: "scatter",
      mode: "lines",
      name: safe(run.label),
      x: run.thresholds,
      y: run.curve.map((point) => times100(point[0])),
      line: { color: colour(look(run.label).colour), width: 2, dash: look(run.label).dash },
      hovertemplate: "%{y:.2f} %",
    }));
    const whole = dataset().references.find((reference) => reference.title === "Whole image");
    const level = whole ? byName(whole.macro, "dice_best")[0] : null;
    const shapes = [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: threshold, x1: threshold, line: { color: colour("accent"), width: 2 } }];
    if (level !== null) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 100 * level, y1: 100 * level, line: { color: colour("caution"), width: 2, dash: "dash" } });
    }
    const at = (run, where) => run.curve[Math.round(where * (run.curve.length - 1))];
    const best = (run) => {
      const place = run.curve.reduce((top, point, index) => (point[0] > run.curve[top][0] ? index : top), 0);
      return `${percent(run.curve[place][0])} at ${run.thresholds[place].toFixed(2)}`;
    };
    const head = ["", `Dice at ${threshold.toFixed(2)}, %`, "Peak of the curve, %"];
    readout("curves", [head, ...runs.map((run) => [run.label, estimate(at(run, threshold)), best(run)])]);
    const steps = Array.from({ length: 11 }, (_, index) => index / 10);
    return {
      traces: [...bands, ...lines],
      layout: layout({
        height: narrow(plot) ? 340 : 440,
        hovermode: narrow(plot) ? "closest" : "x unified",
        shapes,
        xaxis: axis(narrow(plot) ? "Threshold" : "Threshold of the normalised map", { range: [0, 1], hoverformat: ".2f" }),
        yaxis: axis("Dice, %", { rangemode: "tozero" }),
      }),
      table: [["", ...steps.map((step) => step.toFixed(1))], ...runs.map((run) => [run.label, ...steps.map((step) => percent(at(run, step)[0]))])],
      reading: (level === null ? "" : `Dashed: marking the whole image, ${percent(level)} %. `) +
        "The peak here is that of the mean over findings at one threshold for all; \u201cbest threshold\u201d in the tables lets every finding have its own.",
    };
  }

  function size(plot) {
    const number = document.getElementById("size-number").value;
    const runs = shownRuns().filter((run) => run.areas.length);
    const middle = (area) => 100 * Math.sqrt(Math.max(area.low, 1e-6) * area.high);
    // Side by side, or intervals would hide each other.
    const apart = (place) => 1.015 ** (place - (runs.length - 1) / 2);
    const score = (area) => area.scores[number] ?? [null, null, null];
    const traces = runs.map((run, place) => ({
      type: "scatter",
      mode: "lines+markers",
      x: run.areas.map((area) => middle(area) * apart(place)),
      y: run.areas.map((area) => times100(score(area)[0])),
      error_y: bars(run.areas.map(score), { color: colour(look(run.label).colour, 0.55), thickness: 1 }),
      line: { color: colour(look(run.label).colour), width: 2, dash: look(run.label).dash },
      marker: { symbol: look(run.label).symbol, size: 8 },
      hovertemplate: run.areas.map((area) =>
        `${safe(run.label)}<br>Area ${percent(area.low)} to ${percent(area.high)} %, ${area.count} pairs<br>${data.numbers[number].title}: ${estimate(score(area))} %<extra></extra>`),
    }));
    const floor = runs[0]?.areas ?? [];
    const random = number === "pointing_game";
    traces.push({
      type: "scatter",
      mode: "lines",
      x: floor.map(middle),
      y: floor.map((area) => (random ? 50 * (area.low + area.high) : times100(area.whole_image))),
      line: { color: colour("caution"), width: 2, dash: "dash" },
      hovertemplate: `${random ? "A random point" : "Whole image"}: %{y:.2f} %<extra></extra>`,
    });
    const bins = Math.max(0, ...runs.map((run) => run.areas.length));
    return {
      traces,
      layout: layout({
        height: narrow(plot) ? 360 : 440,
        xaxis: axis(narrow(plot) ? "Area, % of the image" : "Area of the region, % of the image", { type: "log", tickvals: [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100] }),
        yaxis: axis(`${data.numbers[number].title}, %`, { rangemode: "tozero" }),
      }),
      table: [
        ["", "Area, %", "Pairs", `${data.numbers[number].title}, %`, "Dice of the whole image, %"],
        ...runs.flatMap((run) => run.areas.map((area) =>
          [run.label, `${percent(area.low)} to ${percent(area.high)}`, String(area.count), estimate(score(area)), percent(area.whole_image)])),
      ],
      reading: runs.length
        ? `${bins} groups of about ${Math.round(floor.reduce((sum, area) => sum + area.count, 0) / Math.max(1, floor.length))} pairs. Dashed: ${random ? "a random point, which hits a region as often as its area says" : "marking the whole image"}.`
        : "No scored pairs.",
    };
  }

  const PLACES = ["upper", "middle", "lower"].flatMap((row) => ["left", "centre", "right"].map((column) => `${row} ${column}`));

  function position(plot) {
    const number = document.getElementById("position-number").value;
    const runs = shownRuns().filter((run) => run.positions.length);
    const shares = number === "count" || number === "peaks";
    const value = (run, cell) => {
      if (number === "peaks") return cell.peaks;
      if (number === "count") return cell.count / Math.max(1, run.positions.reduce((sum, other) => sum + other.count, 0));
      return cell.scores[number]?.[0] ?? null;
    };
    // The places of regions are the same for all models.
    const shown = number === "count" ? runs.slice(0, 1) : runs;
    const across = Math.max(1, Math.min(shown.length, Math.floor(widthOf(plot) / (narrow(plot) ? 140 : 200))));
    const down = Math.max(1, Math.ceil(shown.length / across));
    const side = Math.min(230, widthOf(plot) / across);
    const height = down * (side + 26);
    const made = layout({ height, margin: { l: 0, r: 0, t: 0, b: 0 }, annotations: [] });
    const most = Math.max(0.01, ...shown.flatMap((run) => run.positions.map((cell) => value(run, cell) ?? 0)));
    const wide = Math.min(1, (across * side) / Math.max(1, widthOf(plot)));
    const traces = shown.map((run, place) => {
      const [row, column] = [Math.floor(place / across), place % across];
      const suffix = place ? String(place + 1) : "";
      const left = (column / across) * wide;
      const top = 1 - (row * (side + 26)) / height;
      const hidden = { visible: false, fixedrange: true };
      made[`xaxis${suffix}`] = { ...hidden, domain: [left, left + (wide / across) * 0.94], anchor: `y${suffix}` };
      made[`yaxis${suffix}`] = { ...hidden, domain: [Math.max(0, top - (side + 12) / height), top - 24 / height], anchor: `x${suffix}`, autorange: "reversed" };
      const name = number === "count" ? "All regions" : safe(run.label);
      const room = Math.floor(side / 8);
      made.annotations.push({
        text: name.length > room ? `${name.slice(0, room - 1)}\u2026` : name,
        xref: "paper", yref: "paper", x: left, y: top, xanchor: "left", yanchor: "top", showarrow: false, font: { size: 13 },
      });
      const grid = [0, 1, 2].map((y) => [0, 1, 2].map((x) => run.positions.find((cell) => cell.row === y && cell.column === x)));
      const numbers = grid.map((cells) => cells.map((cell) => (cell ? value(run, cell) : null)));
      return {
        type: "heatmap",
        xaxis: `x${suffix}`,
        yaxis: `y${suffix}`,
        z: numbers,
        zmin: 0,
        zmax: shares ? most : 1,
        text: numbers.map((cells) => cells.map((entry) => (entry === null ? "\u2013" : percent(entry, 0)))),
        texttemplate: "%{text}",
        xgap: 2,
        ygap: 2,
        showscale: false,
        colorscale: [[0, colour("raised")], [1, colour("heat")]],
        textfont: { color: colour("ink"), size: 13 },
        hoverongaps: true,
        customdata: grid.map((cells, y) => cells.map((cell, x) =>
          `${name}, ${PLACES[3 * y + x]}<br>${cell ? `${percent(value(run, cell))} %, ${cell.count} pairs` : "no pairs"}`)),
        hovertemplate: "%{customdata}<extra></extra>",
      };
    });
    return {
      traces,
      layout: made,
      table: [["", ...PLACES], ...shown.map((run) => [number === "count" ? "All regions" : run.label,
        ...[...run.positions].sort((a, b) => a.row - b.row || a.column - b.column).map((cell) => percent(value(run, cell)))])],
      reading: {
        pointing_game: "In per cent. Places with a dash have no scored pairs.",
        dice_fixed: "In per cent. Places with a dash have no scored pairs.",
        peaks: "Share of all maps that are highest there, in per cent; compare with where the regions are.",
        count: "Share of all regions whose centre lies there, in per cent.",
      }[number],
    };
  }

  const GROUPS = [
    ["both", "both", "both"],
    ["near_miss", "recognised, near miss", "near"],
    ["elsewhere", "recognised, elsewhere", "recognised"],
    ["grounded_only", "grounded only", "grounded"],
    ["neither", "neither", "neither"],
  ];

  function quadrants(plot) {
    const select = document.getElementById("quadrants-finding");
    const options = ["", ...dataset().findings.filter((finding) => dataset().runs.some((run) => run.quadrants[finding]))];
    if (select.dataset.of !== String(state.dataset)) {
      const kept = select.value;
      fill(select, options.map((finding) => [finding, finding || "All together"]));
      select.value = options.includes(kept) ? kept : "";
      select.dataset.of = String(state.dataset);
    }
    const finding = select.value;
    const rows = shownRuns().map((run) => {
      const parts = finding ? [run.quadrants[finding]].filter(Boolean) : Object.values(run.quadrants);
      const count = parts.reduce((sum, part) => sum + part.count, 0);
      const share = (key) => (count ? parts.reduce((sum, part) => sum + part[key] * part.count, 0) / count : null);
      return { label: run.label, count, ...Object.fromEntries(GROUPS.map(([key]) => [key, share(key)])) };
    }).filter((row) => row.count);
    const traces = GROUPS.map(([key, title, ink]) => ({
      type: "bar",
      orientation: "h",
      name: title,
      x: rows.map((row) => times100(row[key])),
      y: rows.map((row) => wrapped(row.label, plot)),
      text: rows.map((row) => (row[key] >= (narrow(plot) ? 0.16 : 0.06) ? `${percent(row[key], 0)}` : "")),
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
      insidetextfont: { color: "#fff" },
      marker: { color: colour(ink), line: { color: colour("surface"), width: 1 } },
      hovertemplate: rows.map((row) => `${safe(row.label)}: ${title}<br>${percent(row[key])} % of ${row.count} pairs<extra></extra>`),
    }));
    return {
      traces,
      layout: layout({
        height: (narrow(plot) ? 170 : 130) + 40 * rows.length,
        barmode: "stack",
        bargap: 0.3,
        showlegend: true,
        legend: { ...topLegend(), traceorder: "normal" },
        margin: { l: 8, r: 16, t: narrow(plot) ? 60 : 30, b: 8 },
        xaxis: axis(narrow(plot) ? "Share, %" : "Share of images with the lesion, %", { range: [0, 100] }),
        yaxis: axis("", { autorange: "reversed", type: "category" }),
      }),
      table: [["", "Pairs", ...GROUPS.map(([, title]) => `${title}, %`)], ...rows.map((row) => [row.label, String(row.count), ...GROUPS.map(([key]) => percent(row[key]))])],
      reading: rows.length ? "" : "No finding here has images with and without it, so there is no threshold for \u201crecognised\u201d.",
    };
  }

  // Drawing

  function tableOf(rows) {
    const [head, ...body] = rows;
    return element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((text, place) => place ? element("th", { scope: "col", class: "num" }, text) : element("td", {}, text)))),
      element("tbody", {}, ...body.map((row) => element("tr", {}, ...row.map((text, place) =>
        place ? element("td", { class: "num" }, text) : element("th", { scope: "row" }, text))))),
    );
  }

  function readout(name, rows) {
    document.querySelector(`#chart-${name} .readout`).replaceChildren(tableOf(rows));
  }

  function draw(chart) {
    chart.stale = false;
    const drawn = chart.make(chart.plot);
    if (!drawn) return;
    Plotly.react(chart.plot, drawn.traces, drawn.layout, { displayModeBar: false, responsive: true });
    chart.figure.querySelector(".reading").textContent = drawn.reading;
    chart.table = drawn.table;
    if (chart.details.open) showTable(chart);
  }

  function showTable(chart) {
    if (chart.table) chart.details.querySelector(".scroll").replaceChildren(tableOf(chart.table));
  }

  /** Draws what is in view again, and the rest when it comes into view. */
  function redraw(names = [...charts.keys()]) {
    for (const name of names) {
      const chart = charts.get(name);
      chart.stale = true;
      if (chart.visible) draw(chart);
    }
  }

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.get(entry.target.id.slice("chart-".length));
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.stale) draw(chart);
    }
  }, { rootMargin: "400px" });

  function legends() {
    for (const legend of document.querySelectorAll(".chart .legend")) {
      legend.replaceChildren(...data.models.map((label) => {
        const mark = element("span", { "aria-hidden": "true", style: `color: var(--${look(label).colour})` }, look(label).glyph);
        const button = element("button", { type: "button", "aria-pressed": String(!state.hidden.has(label)) }, mark, label);
        button.addEventListener("click", () => {
          if (!state.hidden.delete(label)) state.hidden.add(label);
          for (const twin of document.querySelectorAll(".chart .legend button")) {
            twin.setAttribute("aria-pressed", String(!state.hidden.has(twin.lastChild.textContent)));
          }
          redraw();
        });
        return button;
      }));
    }
  }

  const makers = { overview, gap, correlation, curves, size, position, quadrants };
  for (const select of document.querySelectorAll("select.dataset")) {
    fill(select, data.datasets.map((entry, place) => [String(place), entry.title]));
    select.addEventListener("change", () => {
      state.dataset = Number(select.value);
      for (const twin of document.querySelectorAll("select.dataset")) twin.value = select.value;
      redraw();
    });
  }
  fill(document.getElementById("correlation-scope"), data.correlations.map((entry, place) =>
    [String(place), `${entry.scope === "models" ? "a model" : "a model and finding"}, ${entry.dataset ?? "all datasets"}`]));
  const preferred = data.correlations.findIndex((entry) => entry.dataset === null);
  document.getElementById("correlation-scope").value = String(Math.max(0, preferred));
  for (const [name, make] of Object.entries(makers)) {
    const figure = document.getElementById(`chart-${name}`);
    const chart = { name, make, figure, plot: figure.querySelector(".plot"), details: figure.querySelector(".numbers"), stale: true, visible: false };
    charts.set(name, chart);
    for (const control of figure.querySelectorAll("select:not(.dataset), input")) {
      control.addEventListener("input", () => redraw([name]));
    }
    chart.details.addEventListener("toggle", () => chart.details.open && showTable(chart));
    observer.observe(figure);
  }
  legends();
  document.addEventListener("themechange", () => redraw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    redraw();
  });

  function print(paper) {
    state.paper = paper;
    report.lend(paper ? "light" : null);
    // Those out of sight too: they are on paper, and would keep its width.
    for (const chart of charts.values()) draw(chart);
  }

  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
})();
