/** A self-contained page that shows `openapi.json` to people. Nothing is loaded from elsewhere. */
export const docsPage = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Alcove API</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1rem 6rem; }
h2 { margin: 2.5rem 0 .5rem; text-transform: capitalize; }
details { border: 1px solid #8884; border-radius: 6px; margin: .4rem 0; }
summary { cursor: pointer; padding: .5rem .75rem; display: flex; gap: .75rem; align-items: baseline; flex-wrap: wrap; }
summary code { font-weight: 600; }
.method { font: 600 .75rem ui-monospace, monospace; width: 4rem; }
.method.get { color: #0a7; } .method.post { color: #06c; } .method.put { color: #a60; } .method.delete { color: #c33; }
.about { color: #888; }
.body { padding: 0 .75rem .75rem; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid #8883; padding: .25rem .5rem; vertical-align: top; }
pre { background: #8881; border-radius: 6px; overflow: auto; padding: .75rem; font-size: .85rem; }
</style>
</head>
<body>
<h1>Alcove API</h1>
<p id="about">Loading <a href="/api/v1/openapi.json">openapi.json</a>…</p>
<main id="main"></main>
<script>
const text = (tag, content, cls) => { const e = document.createElement(tag); e.textContent = content; if (cls) e.className = cls; return e; };
const show = (parent, title, value) => { if (!value) return; parent.append(text("h4", title), text("pre", JSON.stringify(value, null, 2))); };
fetch("/api/v1/openapi.json").then((r) => r.json()).then((doc) => {
  const resolve = (node, depth = 0) => {
    if (Array.isArray(node)) return node.map((n) => resolve(n, depth));
    if (!node || typeof node !== "object") return node;
    if (node.$ref && depth < 4) return resolve(doc.components.schemas[node.$ref.split("/").pop()], depth + 1);
    return Object.fromEntries(Object.entries(node).map(([k, v]) => [k, resolve(v, depth)]));
  };
  document.getElementById("about").textContent = doc.info.description + " Version " + doc.info.version + ". Send the key as X-API-Key or as a Bearer token. ";
  const main = document.getElementById("main");
  for (const tag of doc.tags) {
    main.append(text("h2", tag.name), text("p", tag.description, "about"));
    for (const [path, methods] of Object.entries(doc.paths)) for (const [method, op] of Object.entries(methods)) {
      if (!op.tags.includes(tag.name)) continue;
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.append(text("span", method.toUpperCase(), "method " + method), text("code", path), text("span", op.summary, "about"));
      const body = text("div", "", "body");
      if (op.description) body.append(text("p", op.description));
      if (op.parameters) {
        const table = document.createElement("table");
        for (const p of op.parameters) {
          const row = document.createElement("tr");
          row.append(text("td", p.name), text("td", p.in + (p.required ? ", required" : "")), text("td", [p.schema.type, p.schema.description].filter(Boolean).join(": ")));
          table.append(row);
        }
        body.append(table);
      }
      show(body, "Request", op.requestBody && resolve(op.requestBody.content));
      for (const [status, response] of Object.entries(op.responses)) if (status !== "default") show(body, status + " " + response.description, resolve(response.content));
      details.append(summary, body);
      main.append(details);
    }
  }
}).catch((error) => { document.getElementById("about").textContent = "openapi.json could not be read: " + error; });
</script>
</body>
</html>
`;
