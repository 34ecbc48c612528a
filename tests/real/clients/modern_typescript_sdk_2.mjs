// TypeScript SDK 2.x before the demo server, in the era of 2026-07-28: the conversation of
// `modern_python_sdk_2.py`.
//
// Run as `node modern_typescript_sdk_2.mjs URL FOLDER MODE`, FOLDER being the one that holds
// `node_modules`, MODE a modern revision or `auto`, which has to find it.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";

const COUNTER = "demo://counter";
const ODD = "é — 読 🎉 \u2028\u2029\x85 \"\\\t\r\n {}[] \x7f \u0000 end";
const BIG = "0123456789abcdé読🎉".repeat(65536); // 1 MiB of characters, more in bytes
const LEVEL = { "io.modelcontextprotocol/logLevel": "warning" };

const [url, folder, mode] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const { Client, StreamableHTTPClientTransport } = await import(
  pathToFileURL(resolve("@modelcontextprotocol/client"))
);

// The conversation can hang on any lost message; nothing else would end it.
setTimeout(() => {
  console.error("no end within 120 s");
  process.exit(1);
}, 120_000).unref();

const host = { sampled: null, elicited: null, logs: [], changes: [], changed() {} };
const client = new Client(
  { name: "typescript-sdk-2", version: "1.0.0" },
  {
    capabilities: { sampling: {}, elicitation: { form: {} }, roots: {} },
    versionNegotiation: { mode: mode === "auto" ? mode : { pin: mode } },
  },
);
client.setRequestHandler("sampling/createMessage", ({ params }) => {
  host.sampled = params.messages[0].content.text;
  return { role: "assistant", model: "none", content: { type: "text", text: "the answer of the model" } };
});
client.setRequestHandler("elicitation/create", ({ params }) => {
  host.elicited = params.message;
  return { action: "accept", content: { answer: "Ada é" } };
});
client.setRequestHandler("roots/list", () => ({
  roots: [{ uri: "file:///tmp/real", name: "the root" }],
}));
client.setNotificationHandler("notifications/message", ({ params }) => host.logs.push(params.level));
client.setNotificationHandler("notifications/resources/updated", ({ params }) => change(params.uri));
client.setNotificationHandler("notifications/tools/list_changed", () => change("tools"));

function change(what) {
  host.changes.push(what);
  host.changed();
}

async function text(name, args = {}, options = {}, _meta = undefined) {
  const result = await client.callTool({ name, arguments: args, _meta }, options);
  if (result.isError) throw new Error(JSON.stringify(result));
  return result.content[0].text;
}

async function paged(ask, name, key) {
  const found = [];
  let cursor;
  do {
    const page = await ask(cursor === undefined ? {} : { cursor });
    found.push(...page[name].map((item) => item[key]));
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

async function reads() {
  const prompt = await client.getPrompt({ name: "greet", arguments: { name: "Jürgen" } });
  const { completion } = await client.complete({
    ref: { type: "ref/prompt", name: "greet" },
    argument: { name: "name", value: "a" },
  });
  return {
    tools: (await paged((params) => client.listTools(params), "tools", "name")).sort(),
    prompts: await paged((params) => client.listPrompts(params), "prompts", "name"),
    resources: await paged((params) => client.listResources(params), "resources", "uri"),
    templates: await paged(
      (params) => client.listResourceTemplates(params),
      "resourceTemplates",
      "uriTemplate",
    ),
    prompt: prompt.messages[0].content.text,
    resource: (await client.readResource({ uri: COUNTER })).contents.length,
    completion: completion.values,
  };
}

async function calls() {
  const notes = [];
  const onprogress = (note) => notes.push([note.progress, note.total]);
  return {
    echo: (await text("echo", { text: ODD })) === ODD,
    header: await text("echo", { text: "by header", region: "Zürich — 読" }),
    slow: await text("slow", { seconds: 0.3, steps: 3 }, { onprogress }),
    progress: notes,
    big: (await text("echo", { text: BIG })) === BIG,
    era: JSON.parse(await text("info")).era,
  };
}

async function questions() {
  return {
    elicitation: JSON.parse(await text("ask", { question: "a question é" })),
    elicited: host.elicited,
    sampling: JSON.parse(await text("sample", { prompt: "a prompt é" })),
    sampled: host.sampled,
    roots: JSON.parse(await text("roots")),
  };
}

async function notifications() {
  await text("log", { message: "said" }, {}, LEVEL);
  const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: [COUNTER] });
  const both = new Promise((resolve) => {
    host.changed = () => host.changes.length === 2 && resolve();
  });
  await text("touch");
  await text("grow");
  await both;
  await subscription.close();
  return { logs: host.logs, changes: host.changes };
}

async function cancellation() {
  const abort = new AbortController();
  let begin;
  const begun = new Promise((resolve) => (begin = resolve));
  const outcome = text("slow", { seconds: 60, steps: 600 }, { signal: abort.signal, onprogress: begin }).then(
    () => "answered",
    () => "cancelled",
  );
  await begun;
  abort.abort("enough");
  return { cancelled: (await outcome) === "cancelled", after: await text("echo", { text: "after" }) };
}

async function together() {
  const half = (seconds) => text("slow", { seconds });
  return { together: await Promise.all([half(0.3), half(0.2)]) };
}

await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const seen = {
  protocol: client.getNegotiatedProtocolVersion(),
  ...(await reads()),
  ...(await calls()),
  ...(await questions()),
  ...(await notifications()),
  ...(await cancellation()),
  ...(await together()),
};
await client.close();
console.log(JSON.stringify(seen));
