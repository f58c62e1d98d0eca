// The panels that need flows get them here; the others have asked the server.
const name = process.env.HOSTILE;
if (events.url !== "api/flows?verdict=dropped") throw new Error(events.url);
events.listeners.state({ data: JSON.stringify({ error: null }) });
const flow = { time: "2026-11-21T12:10:32Z", source: name, destination: name, port: "80/TCP", reply: false, verdict: "DROPPED", reason: "POLICY_DENY", rule: name, summary: name };
events.listeners.flows({ data: JSON.stringify({ flows: Array(300).fill(flow), left_out: 3, lost: 4 }) });
if (known.rows.nodes.length !== MAX_ROWS) throw new Error("rows are not bounded");
byId("pause").listeners.click();
events.listeners.flows({ data: JSON.stringify({ flows: [{ ...flow, verdict: "FORWARDED" }], left_out: 0, lost: 0 }) });
if (known.rows.texts().includes("FORWARDED")) throw new Error("a paused page has changed");
const drawPanels = () => {
  // Panels that have no answer yet.
  if (!["name", "endpoints", "maps"].every(id => known[id]?.nodes.length) || !failing.has("traffic")) return later(drawPanels, 20);
  const edge = { source: name, destination: name, port: "80/TCP", forwarded: 1, dropped: 2, recent: 0 };
  panels.traffic({ services: { rows: [edge] }, drops: { rows: [{ ...edge, reason: "POLICY_DENY", rule: "NetworkPolicy/shop/no", meaning: name }] } });
  const drawn = Object.fromEntries(Object.entries(known).map(([id, node]) => [id, [...new Set(node.texts())]]));
  console.log(JSON.stringify({ ...drawn, elements: [...Node.names].sort() }));
  process.exit(0);
};
drawPanels();
later(() => { throw new Error("panels without an answer: " + Object.keys(known)); }, 20000);
