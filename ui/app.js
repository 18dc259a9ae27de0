// app.js - the page: views, the key, the live feed, and the reading of runs.
"use strict";

const keyName = "tinkc.key";

// ---- requests, all to the server the page came from ----

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

const api = {
  headers(more) {
    const key = sessionStorage.getItem(keyName);
    return { ...(key ? { "X-API-Key": key } : {}), ...more };
  },
  async send(path, options) {
    const response = await fetch(path, { cache: "no-store", credentials: "omit", ...options, headers: this.headers(options?.headers) });
    if (response.ok) return response;
    let text = `HTTP ${response.status}`;
    try {
      const body = await response.json();
      text = body.detail || body.error?.message || text;
    } catch { /* not JSON */ }
    if (response.status === 401) askForKey(sessionStorage.getItem(keyName) ? "This key was not accepted." : "");
    throw new Refused(response.status, text);
  },
  async get(path) { return (await this.send(path)).json(); },
  post(path, body, signal) {
    return this.send(path, { method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  },
};

let keyGiven = () => {};
function askForKey(problem) {
  const dialog = document.getElementById("key-dialog");
  document.getElementById("key-error").textContent = problem;
  if (!dialog.open) dialog.showModal();
}

function setupKey() {
  const dialog = document.getElementById("key-dialog"), input = document.getElementById("key-input");
  dialog.addEventListener("cancel", (e) => e.preventDefault());
  document.getElementById("key-form").addEventListener("submit", () => {
    sessionStorage.setItem(keyName, input.value.trim());
    input.value = "";
    keyGiven();
  });
}

// ---- the feed ----

const live = {
  el: null,
  set(state, text) { this.el.className = "live " + state; this.el.textContent = text; },
};

// A browser opens six connections to a server, and a stream holds one: pages that nobody sees must
// not hold any.
function whenSeen() {
  return new Promise((go) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      go();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

async function follow(take) {
  let wait = 500;
  for (;;) {
    await whenSeen();
    const stop = new AbortController();
    const leave = (e) => { if (document.hidden || e.type === "pagehide") stop.abort(); };
    document.addEventListener("visibilitychange", leave, { signal: stop.signal });
    window.addEventListener("pagehide", leave, { signal: stop.signal });
    try {
      const response = await api.send("/ui/events", { signal: stop.signal });
      live.set("on", "live");
      wait = 500;
      await readEvents(response.body, (e) => take(e.event, JSON.parse(e.data)));
      live.set("off", "reconnecting");
    } catch (e) {
      if (stop.signal.aborted) {
        live.set("off", "paused");
        continue;
      }
      if (e.status === 401) {
        live.set("off", "key needed");
        await new Promise((go) => { keyGiven = go; });
        continue;
      }
      live.set("off", e.status === 503 ? "too many pages are open" : "reconnecting");
    }
    stop.abort();
    await new Promise((go) => setTimeout(go, wait));
    wait = Math.min(wait * 2, 10000);
  }
}

// ---- files of runs, read from where they were left ----

async function readFile(run, name, take) {
  const file = run.about[name], place = run.at[name] || (run.at[name] = { next: 0, seen: 0, generation: null, busy: false });
  if (!file || place.busy) return;
  const other = place.generation !== file.generation;
  if (!other && file.size <= place.seen) return;
  place.busy = true;
  try {
    if (other) { take(null); place.next = 0; place.generation = file.generation; }
    for (let more = true; more;) {
      const got = await api.get(`/ui/runs/${run.id}/${name}?from=${place.next}`);
      if (got.from !== place.next) take(null);
      take(got.rows);
      if (name === "metrics") run.leftOut += got.left_out;
      more = got.more && got.next !== place.next;
      place.next = got.next;
      place.seen = got.size;
    }
    place.failed = 0;
    run.problem = "";
  } catch (e) {
    place.failed = (place.failed || 0) + 1;
    run.problem = e.status === 401 ? "" : e.message;
    take([]);
  }
  place.busy = false;
  if (!place.failed) readFile(run, name, take); // it may have grown meanwhile
}

class LiveSource {
  constructor(show, named) { this.show = show; this.named = named; this.hello = null; }
  canChat() { return Boolean(this.hello?.chat && this.models); }
  empty() {
    return emptyState("No runs yet", h("p", {}, "A run appears here as soon as ", h("code", {}, "tinkc train"), " writes its first step."),
      this.hello && !this.hello.log_dirs ? h("p", {}, "This server shows no log directory; give it one with ", h("code", {}, "--log-dir DIR"), ".") : null);
  }
  select(run) {
    const changed = () => this.show();
    readFile(run, "metrics", (rows) => { if (rows) run.addRows(rows); else run.reset(); changed(); });
    for (const name of ["samples", "checkpoints"])
      readFile(run, name, (rows) => { 
        if (rows) run[name].push(...rows); else run[name] = [];
        changed();
        if (name === "checkpoints") this.named();
      });
  }
  async log(run) {
    const file = run.about.log;
    if (run.logBusy || run.logSeen === file.generation + file.size) return;
    run.logBusy = true;
    run.logSeen = file.generation + file.size;
    try { run.logText = (await api.get(`/ui/runs/${run.id}/log`)).text; } catch (e) { run.logText = e.message; }
    run.logBusy = false;
    this.show();
  }
  chat(path) { openChat(path); }
  download(path) { download(path); }
}

// The archive's address holds a ticket of its own, good for two hours: the browser may fetch it.
async function download(path) {
  const at = path.replace(/^tinker:\/\//, "").split("/");
  if (at.length !== 3) return;
  const [run, kind, name] = at.map(encodeURIComponent);
  const stop = new AbortController();
  try {
    const response = await api.send(`/api/v1/training_runs/${run}/checkpoints/${kind}/${name}/archive`, { signal: stop.signal });
    const url = response.url;
    stop.abort();
    h("a", { href: url, download: `${at[0]}-${at[2]}.tar` }).click();
  } catch (e) {
    if (e.name !== "AbortError") announceError(`${path}: ${e.message}`);
  }
}

function announceError(text) {
  const box = h("div", { class: "toast", role: "alert" }, text);
  document.body.append(box);
  setTimeout(() => box.remove(), 6000);
}

// ---- views ----

let openChat = () => {};

function showView() {
  const names = ["runs", "playground", "engine"];
  const wanted = location.hash.slice(1).split("/")[0];
  const name = names.includes(wanted) ? wanted : "runs";
  for (const n of names) document.getElementById("view-" + n).hidden = n !== name;
  for (const a of document.querySelectorAll(".tabs a"))
    if (a.dataset.view === name) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  document.title = "tinkc – " + name;
  document.dispatchEvent(new CustomEvent("view", { detail: name }));
}

function start() {
  live.el = document.getElementById("live");
  setupTheme(document.getElementById("theme"));
  setupKey();
  const source = new LiveSource(() => runs.later(), () => playground.relabel());
  const runs = new RunsView(document.getElementById("view-runs"), source);
  const playground = new Playground(document.getElementById("view-playground"), api, (p) => runs.nameOf(p));
  const engine = new EngineView(document.getElementById("view-engine"),
    { chat: (p) => openChat(p), download, checkpoints: () => api.get("/api/v1/checkpoints?limit=100") });
  let wanted = null;
  openChat = (path) => { wanted = path; location.hash = "#playground"; if (!document.getElementById("view-playground").hidden) playground.load(path); };
  document.addEventListener("view", (e) => {
    if (e.detail === "playground" && source.hello) openPlayground();
    if (e.detail === "runs") runs.later();
    if (e.detail === "engine" && engine.status) engine.take(engine.status);
  });
  const openPlayground = () => {
    if (!source.hello.chat) playground.unavailable("This server cannot chat", "It was built without a tokenizer.");
    else if (!source.models) playground.unavailable("No model is loaded here", "tinkc serve loads one and shows a playground; tinkc ui shows log directories only.");
    else { playground.load(wanted); wanted = null; }
  };
  window.addEventListener("hashchange", showView);
  showView();
  follow((event, data) => {
    if (event === "hello") source.hello = data;
    else if (event === "runs") runs.setRuns(data);
    else if (event === "run") runs.setRun(data);
    else if (event === "status") {
      const had = source.models;
      source.models = data.models?.length || 0;
      if (had === undefined && !document.getElementById("view-playground").hidden) openPlayground();
      if (had !== source.models) runs.later();
      runs.setCurves(data.curves || []);
      if (!document.getElementById("view-engine").hidden || !engine.status) engine.take(data);
      else { engine.history.push({ now: Date.now(), ...data }); engine.status = data; }
    }
  });
}

document.addEventListener("DOMContentLoaded", start);
