// runs.js - runs and what they wrote: curves, samples, checkpoints. Used by the page, where a feed
// brings news, and by a report, where everything is there from the beginning.
"use strict";

// ---- what is known of one run ----

class Run {
  constructor(about, index) {
    this.color = palette[index % palette.length];
    this.reset();
    this.samples = [];
    this.checkpoints = [];
    this.at = {};
    this.update(about);
  }

  update(about) { this.about = about; this.id = about.id; this.name = about.name; }

  reset() {
    this.series = new Map(); // name -> {step, time, y}
    this.elapsed = 0;
    this.leftOut = 0;
  }

  get status() {
    const fresh = Date.now() - this.about.changed_ms < 120000;
    return this.about.status === "running" && !fresh ? "idle" : this.about.status;
  }

  get kind() {
    const c = this.about.config || {};
    return c.recipe || ("dpo_beta" in c ? "dpo" : "loss_fn" in c ? "rl" : "num_epochs" in c ? "sft" : "");
  }

  // The number that tells most, and what it is.
  get headline() {
    for (const [name, label] of [["env/all/reward/total", "reward"], ["train_mean_nll", "loss"], ["dpo_loss", "loss"], ["loss", "loss"]]) {
      const value = this.newest(name);
      if (value !== undefined) return { label, value };
    }
    return null;
  }

  newest(name) { return this.series.get(name)?.y.at(-1) ?? (this.about.last || {})[name]; }
  get options() { return this.about.config || {}; }

  // A step that was trained again replaces what came after it.
  add(name, step, value) {
    let s = this.series.get(name);
    if (!s) this.series.set(name, s = { step: [], time: [], y: [] });
    while (s.step.length && s.step[s.step.length - 1] >= step) { s.step.pop(); s.time.pop(); s.y.pop(); }
    s.step.push(step); s.time.push(this.elapsed); s.y.push(value);
  }

  addRows(rows) {
    for (const row of rows) {
      const step = row.step;
      if (!Number.isFinite(step)) continue; // not a row of a step
      const seconds = row["time/step"] ?? row["time/total"];
      const tokens = row.num_tokens ?? row["env/all/total_ac_tokens"];
      if (seconds > 0) this.elapsed += seconds;
      for (const [name, value] of Object.entries(row))
        if (name !== "step" && typeof value === "number" && Number.isFinite(value)) this.add(name, step, value);
      if (seconds > 0 && tokens > 0) this.add("tokens/s", step, tokens / seconds);
    }
  }
}

// ---- which curves stand together; one: names for the same thing ----

const panels = [
  { id: "loss", title: "Loss", keys: [["train_mean_nll", "train"], ["test/nll", "test"], ["dpo_loss", "dpo"], ["loss", ""],
      ["train/loss", "train"]], like: /(^|\/)(loss|nll)$/ },
  { id: "reward", title: "Reward", keys: [["env/all/reward/total", "train"], ["test/env/all/reward/total", "test"],
      ["reward/mean", "train"], ["reward", ""], ["accuracy", "accuracy"]], like: /reward/ },
  { id: "rate", title: "Learning rate", one: true, keys: [["learning_rate", ""], ["optim/lr", ""]], like: /(^|\/)lr$/ },
  { id: "speed", title: "Throughput, tokens/s", one: true, keys: [["tokens/s", ""], ["tok/s", ""]], like: /tokens_per_s/ },
];

function keysOf(panel, runs) {
  const has = (name) => runs.some((r) => r.series.has(name));
  const known = panel.keys.filter(([name]) => has(name));
  if (known.length) return known;
  const all = new Set(runs.flatMap((r) => [...r.series.keys()]));
  return [...all].filter((n) => panel.like.test(n)).slice(0, 2).map((n) => [n, n]);
}

// ---- options: which differ between runs ----

const ownOptions = new Set(["log_path", "wandb_name", "seed_source"]); // differ always, and say nothing

function differing(all) {
  const runs = all.filter((r) => !r.live); // of those only a few are known
  const names = [...new Set(runs.flatMap((r) => Object.keys(r.options)))].filter((n) => !ownOptions.has(n));
  return runs.length < 2 ? [] : names.filter((n) => new Set(runs.map((r) => JSON.stringify(r.options[n]))).size > 1).sort();
}

// Numbers by size, everything else as text; what is missing comes last, whichever way.
function byValue(a, b, down) {
  const none = (v) => v === undefined || v === null || v === "";
  if (none(a) || none(b)) return none(a) - none(b);
  const order = typeof a === "number" && typeof b === "number" ? a - b : shown(a).localeCompare(shown(b), undefined, { numeric: true });
  return down ? -order : order;
}

// ---- the view ----

class RunsView {
  // source: {live, select(run), download(path), chat(path), canChat()}
  constructor(host, source) {
    this.source = source;
    this.runs = new Map();
    this.chosen = new Set();
    this.touched = false; // somebody chose
    this.charts = new Map();
    this.link = new ChartLink();
    this.smoothing = memory.get("smoothing", 0.6);
    this.log = memory.get("log", false);
    this.xKind = memory.get("x", "step");
    this.filter = "";
    this.build(host);
  }

  build(host) {
    this.list = h("ul", { class: "run-list", "aria-label": "Runs" });
    this.count = h("span", { class: "muted" });
    const find = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs",
      oninput: (e) => { this.filter = e.target.value.toLowerCase(); this.showList(); } });
    this.side = h("aside", { class: "side", "aria-label": "List of runs" },
      h("div", { class: "side-head" }, find,
        h("div", { class: "side-tools" }, this.count,
          h("button", { class: "link", type: "button", onclick: () => this.chooseAll(true) }, "all"),
          h("button", { class: "link", type: "button", onclick: () => this.chooseAll(false) }, "none"))),
      this.list);
    this.grid = h("div", { class: "chart-grid" });
    this.moreGrid = h("div", { class: "chart-grid" });
    this.moreFind = h("input", { type: "search", placeholder: "Filter metrics", "aria-label": "Filter metrics",
      oninput: () => this.later() });
    this.moreTitle = h("summary", {}, "All metrics");
    this.more = h("details", { class: "more", ontoggle: () => this.later() }, this.moreTitle,
      h("div", { class: "more-tools" }, this.moreFind), this.moreGrid);
    this.tableBox = h("section", { class: "block", "aria-label": "Table of runs" });
    this.configBox = h("section", { class: "block", "aria-label": "Options" });
    this.logText = h("div", { class: "logs" });
    this.logBox = h("details", { class: "more", ontoggle: () => this.later() }, h("summary", {}, "Log"), this.logText);
    this.order = memory.get("order", { key: "changed", down: true });
    this.samplesBox = h("section", { class: "block", "aria-label": "Samples" });
    this.checkBox = h("section", { class: "block", "aria-label": "Checkpoints" });
    this.state = h("div", {});
    this.body = h("div", { class: "content" }, this.tools(), this.grid, this.more, this.tableBox, this.configBox, this.samplesBox,
      this.checkBox, this.logBox);
    fill(host, h("div", { class: "split" }, this.side, h("div", { class: "pane" }, this.state, this.body)));
    this.waiting();
  }

  tools() {
    const value = h("output", { class: "num" }, this.smoothing.toFixed(2));
    const range = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smoothing,
      oninput: (e) => {
        this.smoothing = Number(e.target.value);
        value.textContent = this.smoothing.toFixed(2);
        memory.set("smoothing", this.smoothing);
        this.later();
      } });
    const toggle = (name, text, get, set) => {
      const b = h("button", { type: "button", class: "toggle", "aria-pressed": String(get()), onclick: () => {
        set(!get());
        b.setAttribute("aria-pressed", String(get()));
        memory.set(name, get());
        this.later();
      } }, text);
      return b;
    };
    const xs = h("select", { "aria-label": "Horizontal axis", onchange: (e) => {
      this.xKind = e.target.value;
      memory.set("x", this.xKind);
      this.link.range = null;
      this.later();
    } }, h("option", { value: "step" }, "steps"), h("option", { value: "time" }, "training time"));
    xs.value = this.xKind;
    return h("div", { class: "toolbar", role: "toolbar", "aria-label": "Curves" },
      h("label", { class: "inline" }, "Smoothing ", range, value),
      toggle("log", "Log scale", () => this.log, (v) => { this.log = v; }),
      h("label", { class: "inline" }, "Over ", xs),
      h("span", { class: "hint" }, "Drag to zoom, double-click to reset"));
  }

  waiting() {
    this.body.hidden = true;
    fill(this.state, h("div", { class: "skeleton", "aria-label": "Loading" }, [1, 2, 3, 4].map(() => h("div", {}))));
  }

  // ---- news ----

  setRuns(list) {
    const old = this.runs;
    this.runs = new Map();
    for (const about of list) {
      const known = old.get(about.id);
      if (known) known.update(about);
      this.runs.set(about.id, known || new Run(about, this.nextColor()));
    }
    for (const [id, run] of old) if (run.live && !this.runs.has(id)) this.runs.set(id, run);
    for (const id of [...this.chosen]) if (!this.runs.has(id)) this.chosen.delete(id);
    this.ready = true;
    this.chooseUsual();
    this.refresh();
  }

  setRun(about) {
    const run = this.runs.get(about.id);
    if (run) run.update(about);
    else this.runs.set(about.id, new Run(about, this.nextColor()));
    this.chooseUsual();
    this.refresh();
  }

  // Runs that the SDK drives at this server, which saw their losses. They have no files.
  setCurves(list) {
    const ids = new Set(list.map((c) => "live:" + c.id));
    let changed = false;
    for (const [id, run] of this.runs) if (run.live && !ids.has(id)) { this.runs.delete(id); this.chosen.delete(id); changed = true; }
    for (const c of list) {
      const id = "live:" + c.id, about = { id, name: c.name === c.id ? "SDK " + c.id.slice(0, 8) : c.name, path: c.id, status: "running", changed_ms: c.changed_ms,
        config: { model_name: c.model, lora_rank: c.rank, recipe: "sdk" }, last: { step: c.steps - 1 } };
      const known = this.runs.get(id), run = known || new Run(about, this.nextColor());
      if (known && known.curve === c.steps && known.about.changed_ms === c.changed_ms) continue;
      run.live = true;
      run.curve = c.steps;
      run.update(about);
      run.reset();
      for (const [step, loss] of c.points) run.add("loss", step, loss);
      this.runs.set(id, run);
      changed = true;
    }
    if (!changed) return;
    this.chooseUsual();
    this.later();
  }

  nextColor() {
    const used = [...this.runs.values()].map((r) => palette.indexOf(r.color));
    let best = 0;
    const uses = (i) => used.filter((u) => u === i).length;
    for (let i = 1; i < palette.length; i++) if (uses(i) < uses(best)) best = i;
    return best;
  }

  sorted() {
    return [...this.runs.values()].sort((a, b) =>
      (b.status === "running") - (a.status === "running") || b.about.changed_ms - a.about.changed_ms ||
      a.name.localeCompare(b.name));
  }

  // Until somebody chooses: the newest few, which are loaded anyway.
  chooseUsual() {
    if (this.touched) return;
    for (const run of this.sorted()) {
      if (this.chosen.size >= 6) break;
      this.chosen.add(run.id);
    }
  }

  chooseAll(on) {
    this.touched = true;
    for (const run of this.visible()) if (on) this.chosen.add(run.id); else this.chosen.delete(run.id);
    this.refresh();
  }

  choose(run, on) {
    this.touched = true;
    if (on) this.chosen.add(run.id); else this.chosen.delete(run.id);
    this.refresh();
  }

  selected() { return [...this.runs.values()].filter((r) => this.chosen.has(r.id)).sort((a, b) => a.name.localeCompare(b.name)); }
  visible() { return this.sorted().filter((r) => (r.name + " " + (r.about.config?.model_name || "")).toLowerCase().includes(this.filter)); }

  refresh() {
    for (const run of this.selected()) this.source.select(run);
    this.later();
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.show(); });
  }

  // ---- showing ----

  show() {
    this.showList();
    if (!this.ready) return;
    const runs = this.selected();
    this.body.hidden = !this.runs.size || !runs.length;
    fill(this.state, !this.runs.size ? this.source.empty()
      : !runs.length ? emptyState("No run is selected", "Choose one or more in the list.") : null);
    if (this.body.hidden) return;
    this.showCharts(runs);
    this.showMore(runs);
    this.showTable(this.visible());
    this.showConfig(runs);
    this.showSamples(runs);
    this.showCheckpoints(runs);
    this.showLog(runs);
  }

  // ---- the table of runs: what each has come to, and the options in which they differ ----

  columns(runs) {
    const number = (key, title, get) => ({ key, title, get, num: true, text: (v) => fmt(v) });
    const has = (c) => runs.some((r) => c.get(r) !== undefined);
    const results = [number("step", "Step", (r) => r.newest("step") ?? r.about.last?.step),
      number("loss", "Loss", (r) => (r.headline?.label === "loss" ? r.headline.value : undefined)),
      number("test", "Test loss", (r) => r.newest("test/nll")),
      number("reward", "Reward", (r) => (r.headline?.label === "reward" ? r.headline.value : undefined)),
      number("speed", "Tokens/s", (r) => r.newest("tokens/s"))].filter(has);
    const options = differing(runs).slice(0, 8).map((name) => ({ key: "o:" + name, title: name, get: (r) => r.options[name], text: shown,
      num: runs.every((r) => typeof r.options[name] === "number" || r.options[name] === undefined || r.options[name] === null) }));
    return [{ key: "name", title: "Run", get: (r) => r.name, text: shown }, { key: "status", title: "State", get: (r) => r.status, text: shown },
      { key: "changed", title: "Changed", get: (r) => r.about.changed_ms || undefined, text: fmtAgo }, ...results, ...options];
  }

  showTable(runs) {
    const columns = this.columns(runs);
    const by = columns.find((c) => c.key === this.order.key) || columns[0];
    const rows = runs.slice().sort((a, b) => byValue(by.get(a), by.get(b), this.order.down) || a.name.localeCompare(b.name));
    const key = JSON.stringify([this.order, columns.map((c) => c.key), rows.map((r) => [r.id, this.chosen.has(r.id), columns.map((c) => shown(c.get(r)))])]);
    this.tableBox.hidden = runs.length < 2;
    if (key === this.tableKey) return;
    this.tableKey = key;
    const sort = (c) => { this.order = { key: c.key, down: this.order.key === c.key ? !this.order.down : Boolean(c.num) }; memory.set("order", this.order); this.later(); };
    const head = columns.map((c) => h("th", { scope: "col", class: c.num ? "num" : "", "aria-sort": c !== by ? "none" : this.order.down ? "descending" : "ascending" },
      h("button", { type: "button", class: "sort", onclick: () => sort(c) }, c.title)));
    fill(this.tableBox, h("h2", {}, "Runs"), h("div", { class: "table-box" }, h("table", { class: "runs-table" }, h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, rows.slice(0, 500).map((run) => h("tr", { class: this.chosen.has(run.id) ? "" : "muted" }, columns.map((c) => {
        const v = c.get(run), text = v === undefined || v === null ? "–" : c.text(v);
        return h("td", { class: c.num ? "num" : "", title: text.length > 40 ? text : null },
          c.key === "name" ? h("span", { class: "key", vars: { "--c": run.color } }, text) : text);
      })))))));
  }

  // ---- options of one run, or what differs between several ----

  showConfig(runs) {
    const some = runs.filter((r) => !r.live && Object.keys(r.options).length).slice(0, 6);
    const all = [...new Set(some.flatMap((r) => Object.keys(r.options)))].sort();
    const names = some.length < 2 || this.allOptions ? all : differing(some);
    const key = JSON.stringify([this.allOptions, some.map((r) => [r.id, r.options])]);
    this.configBox.hidden = !some.length;
    if (key === this.configKey) return;
    this.configKey = key;
    const toggle = h("button", { type: "button", class: "link", onclick: () => { this.allOptions = !this.allOptions; this.later(); } },
      this.allOptions ? "only what differs" : "all options");
    const differs = new Set(differing(some));
    const value = (r, n) => (r.options[n] === undefined ? "–" : r.options[n] === null ? "none" : shown(r.options[n]));
    fill(this.configBox, h("div", { class: "block-head" }, h("h2", {}, some.length < 2 ? "Options" : "Differences of options"), some.length < 2 ? null : toggle),
      !names.length ? h("p", { class: "muted" }, "These runs have the same options.") : h("div", { class: "table-box" }, h("table", { class: "options" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Option"), some.map((r) => h("th", { scope: "col" }, h("span", { class: "key", vars: { "--c": r.color } }, r.name))))),
        h("tbody", {}, names.map((n) => h("tr", { class: some.length > 1 && differs.has(n) && this.allOptions ? "differs" : "" }, h("th", { scope: "row" }, n),
          some.map((r) => h("td", {}, value(r, n)))))))));
  }

  // ---- the end of what runs said ----

  showLog(runs) {
    const some = runs.filter((r) => r.about.log).slice(0, 3);
    this.logBox.hidden = !some.length;
    if (!this.logBox.open || this.logBox.hidden) return;
    for (const run of some) this.source.log?.(run);
    const key = some.map((r) => r.id + (r.logText || "").length + (r.logText || "").slice(-40)).join();
    if (key === this.logKey) return;
    this.logKey = key;
    fill(this.logText, some.map((run) => h("div", {}, some.length > 1 ? h("h3", {}, h("span", { class: "key", vars: { "--c": run.color } }, run.name)) : null,
      h("pre", { class: "log", tabIndex: 0, "aria-label": "Log of " + run.name }, run.logText === undefined ? "…" : run.logText || "nothing yet"))));
    for (const pre of this.logText.querySelectorAll("pre")) pre.scrollTop = pre.scrollHeight;
  }

  showList() {
    const runs = this.visible();
    this.count.textContent = this.runs.size === 1 ? "1 run" : this.runs.size + " runs";
    const items = new Map([...this.list.children].map((li) => [li.dataset.id, li]));
    arrange(this.list, runs.map((run) => this.listItem(run, items.get(run.id))));
  }

  listItem(run, li) {
    if (!li) {
      li = h("li", { "data-id": run.id }, h("label", { class: "run", vars: { "--c": run.color } },
        h("input", { type: "checkbox", onchange: (e) => this.choose(this.runs.get(run.id), e.target.checked) }),
        h("span", { class: "run-name" }), h("span", { class: "run-value num" }), h("span", { class: "run-sub" })));
      li.dataset.id = run.id;
    }
    const last = run.about.last || {}, c = run.about.config || {}, head = run.headline;
    li.querySelector("input").checked = this.chosen.has(run.id);
    li.querySelector("label").title = run.about.path + (run.about.changed_ms ? ", " + fmtAgo(run.about.changed_ms) : "");
    li.querySelector(".run-name").textContent = run.name;
    fill(li.querySelector(".run-value"), head ? [h("span", { class: "muted" }, head.label + " "), fmt(head.value)] : null);
    const fault = run.problem || (run.leftOut ? run.leftOut + " unreadable lines" : "");
    fill(li.querySelector(".run-sub"), fault ? h("span", { class: "error-text" }, fault) : null, h("span", { class: "state " + run.status }, run.status),
      [last.step === undefined ? "no step yet" : "step " + shown(last.step), run.kind, c.model_name]
        .filter(Boolean).map((t) => h("span", {}, shown(t))));
    return li;
  }

  // one: names that mean the same; a run is drawn once, by the first that it has.
  seriesFor(keys, runs, one) {
    const many = keys.length > 1 && !one, out = [];
    for (const run of runs)
      keys.filter(([name]) => run.series.has(name)).slice(0, one ? 1 : undefined).forEach(([name, label], i) => {
        const s = run.series.get(name);
        if (s && s.y.length) out.push({ name: (runs.length > 1 ? run.name : label || run.name) +
            (runs.length > 1 && many && label ? " " + label : ""),
          color: runs.length > 1 || !i ? run.color : palette[(palette.indexOf(run.color) + i) % palette.length],
          dash: i > 0, dot: run.status === "running", x: this.xKind === "time" ? s.time : s.step, y: s.y });
      });
    return out;
  }

  chart(id, title, into) {
    let c = this.charts.get(id);
    if (!c) this.charts.set(id, c = new Chart({ title, link: this.link }));
    if (c.el.parentNode !== into) into.append(c.el);
    c.log = this.log;
    c.smoothing = this.smoothing;
    c.xName = this.xKind === "time" ? "time" : "step";
    c.xFormat = this.xKind === "time" ? (s) => (s >= 120 ? fmt(s / 60) + " min" : fmt(s) + " s") : null;
    return c;
  }

  drop(id) {
    this.charts.get(id)?.remove();
    this.charts.delete(id);
  }

  showCharts(runs) {
    this.used = new Set();
    for (const panel of panels) {
      const keys = keysOf(panel, runs);
      keys.forEach(([name]) => this.used.add(name));
      const series = this.seriesFor(keys, runs, panel.one);
      if (!series.length && (panel.id !== "loss" || runs.some((r) => r.series.size))) { this.drop(panel.id); continue; }
      const c = this.chart(panel.id, panel.title, this.grid);
      if (panel.id === "rate") c.smoothing = 0;
      c.set(series);
    }
    arrange(this.grid, panels.filter((p) => this.charts.has(p.id)).map((p) => this.charts.get(p.id).el));
  }

  showMore(runs) {
    const names = [...new Set(runs.flatMap((r) => [...r.series.keys()]))].filter((n) => !this.used.has(n)).sort();
    const text = this.moreFind.value.toLowerCase();
    const wanted = this.more.open ? names.filter((n) => n.toLowerCase().includes(text)).slice(0, 60) : [];
    this.more.hidden = !names.length;
    this.moreTitle.textContent = `All metrics (${names.length} more)`;
    for (const id of [...this.charts.keys()])
      if (id.startsWith("m:") && !wanted.includes(id.slice(2))) this.drop(id);
    for (const name of wanted) this.chart("m:" + name, name, this.moreGrid).set(this.seriesFor([[name, ""]], runs));
  }

  // ---- samples ----

  showSamples(runs) {
    const all = runs.flatMap((run) => run.samples.map((s) => ({ ...s, run })));
    const key = all.length + "|" + runs.map((r) => r.id + r.samples.length).join();
    this.samplesBox.hidden = !all.length;
    if (key === this.samplesKey) return;
    this.samplesKey = key;
    const prompts = new Map();
    for (const s of all) {
      const p = promptText(s.prompt ?? s.messages);
      if (!prompts.has(p)) prompts.set(p, []);
      prompts.get(p).push(s);
    }
    const again = [...prompts].filter(([, list]) => new Set(list.map((s) => s.step)).size > 1);
    const once = [...prompts].filter(([, list]) => new Set(list.map((s) => s.step)).size <= 1);
    const strips = again.slice(0, 12).map(([p, list]) => this.strip(p, spread(list.sort(bySample), 12), false));
    if (once.length) {
      const list = once.flatMap(([, l]) => l).sort(bySample);
      strips.push(this.strip(again.length ? "Other prompts" : "", spread(list, 16), true));
    }
    fill(this.samplesBox, h("h2", {}, "Samples over time"), strips);
  }

  strip(title, list, withPrompt) {
    const one = new Set(list.map((s) => s.run)).size < 2;
    return h("div", { class: "strip" }, title ? h("h3", {}, title) : null,
      h("div", { class: "cards", tabIndex: 0, role: "group", "aria-label": title || "Samples" }, list.map((s) =>
        h("article", { class: "card", vars: { "--c": s.run.color } },
          h("header", {}, h("b", { class: "num" }, "step " + shown(s.step)), one ? null : h("span", { class: "key", vars: { "--c": s.run.color } }, s.run.name),
            Number.isFinite(s.reward) ? h("span", { class: "tag num" }, "reward " + fmt(s.reward)) : null,
            s.split ? h("span", { class: "tag" }, shown(s.split)) : null),
          withPrompt ? h("p", { class: "muted pre" }, promptText(s.prompt ?? s.messages)) : null,
          h("p", { class: "pre" }, shown(s.completion ?? s.text ?? s.response))))));
  }

  // ---- checkpoints ----

  showCheckpoints(runs) {
    const rows = runs.flatMap((run) => run.checkpoints.map((c) => ({ ...c, run }))).reverse();
    const key = runs.map((r) => r.id + r.checkpoints.length).join() + this.source.canChat();
    this.checkBox.hidden = !rows.length;
    if (key === this.checkKey) return;
    this.checkKey = key;
    fill(this.checkBox, h("h2", {}, "Checkpoints"), h("div", { class: "table-box" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Run", "Name", "Epoch", "Batch", "Path", ""].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", {}, rows.slice(0, 200).map((c) => this.checkpointRow(c))))));
  }

  // "RUN / NAME" of a checkpoint that one of the loaded runs has written; "" = unknown.
  nameOf(path) {
    for (const run of this.runs.values())
      for (const c of run.checkpoints) if (c.sampler_path === path) return `${run.name} / ${c.name}`;
    return "";
  }

  checkpointRow(c) {
    const path = shown(c.sampler_path || c.state_path), name = `checkpoint ${shown(c.name)} of ${c.run.name}`;
    return h("tr", {}, h("td", {}, h("span", { class: "key", vars: { "--c": c.run.color } }, c.run.name)),
      h("td", {}, shown(c.name)), h("td", { class: "num" }, shown(c.epoch)), h("td", { class: "num" }, shown(c.batch ?? c.step)),
      h("td", { class: "path" }, path),
      h("td", { class: "actions" },
        h("button", { class: "icon-button", type: "button", title: "Copy the path", "aria-label": "Copy the path of " + name,
          onclick: (e) => copyText(path, e.currentTarget) }, icon(icons.copy)),
        this.source.canChat() && c.sampler_path ? h("button", { class: "icon-button", type: "button", title: "Sample from it",
          "aria-label": "Sample from " + name, onclick: () => this.source.chat(path) }, icon(icons.chat)) : null,
        this.source.canChat() ? h("button", { class: "icon-button", type: "button", title: "Download",
          "aria-label": "Download " + name, onclick: () => this.source.download(path) }, icon(icons.download)) : null));
  }
}

function promptText(p) {
  if (typeof p === "string") return p;
  if (Array.isArray(p) && p.length === 1 && p[0]?.role === "user") return shown(p[0].content);
  if (Array.isArray(p)) return p.map((m) => (m && typeof m === "object" ? `${shown(m.role)}: ${shown(m.content)}` : shown(m))).join("\n");
  return p === undefined || p === null ? "" : JSON.stringify(p);
}

// Any JSON value as text. An object may have a member toString, and then String() throws.
function shown(v) {
  return v === undefined || v === null ? "" : typeof v === "object" ? JSON.stringify(v) : String(v);
}

function bySample(a, b) { return (Number.isFinite(a.step) ? a.step : 0) - (Number.isFinite(b.step) ? b.step : 0); }

// At most n of a list, the first and the last among them.
function spread(list, n) {
  if (list.length <= n) return list;
  return Array.from({ length: n }, (_, i) => list[Math.round(i * (list.length - 1) / (n - 1))]);
}
