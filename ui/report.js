// report.js - the view of runs on data that stands in the file itself.
"use strict";

class ReportSource {
  select() {}
  canChat() { return false; }
  empty() { return emptyState("This report holds no run"); }
}

document.addEventListener("DOMContentLoaded", () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  setupTheme(document.getElementById("theme"));
  document.getElementById("made").textContent = "made " + new Date(data.made_ms).toLocaleString() + " by tinkc " + data.version;
  const view = new RunsView(document.getElementById("view-runs"), new ReportSource());
  view.setRuns(data.runs.map((r) => ({ ...r.about, status: r.about.status === "running" ? "idle" : r.about.status })));
  for (const r of data.runs) {
    const run = view.runs.get(r.about.id);
    run.addRows(r.metrics);
    run.samples = r.samples;
    run.checkpoints = r.checkpoints;
    if (r.every > 1) run.name += ` (every ${r.every}th step)`;
  }
  view.later();
});
