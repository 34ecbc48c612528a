// The server of the matrix on the TypeScript SDK 1.x, which is of the legacy era.
//
// `node server_typescript_1.mjs FOLDER stdio|http|sse`, FOLDER being the one that holds `node_modules`: the
// program stays with the tests and the packages in the cache. Over HTTP it prints its address. What it
// offers is in `offer.json`, and is the same on every SDK.

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [folder, how] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/${name}`)));

const types = await load("types.js");
const { Server } = await load("server/index.js");

const OFFER = JSON.parse(readFileSync(new URL("offer.json", import.meta.url)));
const PATIENCE = 5000;

/** By URI, the servers of the sessions that subscribed to it; every session has a server of its own. */
const subscribers = new Map();
const stopped = new Set();

const text = (said) => ({ content: [{ type: "text", text: said }] });
const user = (said) => ({ role: "user", content: { type: "text", text: said } });

async function elicited(extra, message) {
  const params = { message, requestedSchema: OFFER.form };
  const found = await extra.sendRequest({ method: "elicitation/create", params }, types.ElicitResultSchema);
  return `${found.action}: ${found.content.answer}`;
}

async function sampled(extra, prompt) {
  const params = { messages: [user(prompt)], maxTokens: 9 };
  const request = { method: "sampling/createMessage", params };
  return (await extra.sendRequest(request, types.CreateMessageResultSchema)).content.text;
}

async function rooted(extra) {
  return (await extra.sendRequest({ method: "roots/list" }, types.ListRootsResultSchema)).roots[0].uri;
}

const TOOLS = {
  echo: ({ args }) => args.text,
  /** A note comes before its pause: clients of the SDK 1.x lose one that comes with the answer. */
  async slow({ args, extra }) {
    const { seconds, steps } = args;
    const progressToken = extra._meta?.progressToken;
    for (let progress = 1; progress <= steps; progress += 1) {
      const params = { progressToken, progress, total: steps };
      if (progressToken !== undefined) await extra.sendNotification({ method: "notifications/progress", params });
      await sleep((seconds * 1000) / steps, undefined, { signal: extra.signal });
    }
    return "Waited.";
  },
  async stopped({ args }) {
    for (const late = Date.now() + PATIENCE; Date.now() < late; await sleep(20)) {
      if (stopped.has(args.name)) return "stopped";
    }
    return "still running";
  },
  async log({ server, extra }) {
    for (const level of ["debug", "info", "warning", "error"]) {
      await server.sendLoggingMessage({ level, data: `said at ${level}`, logger: "matrix" }, extra.sessionId);
    }
    await sleep(100); // over HTTP they go by the GET stream, and belong to this call only while it runs
    return "Logged.";
  },
  ask: ({ args, extra }) => elicited(extra, args.question),
  async ask_twice({ args: { name = "" }, extra }) {
    return `${await elicited(extra, `first${name}?`)}, ${await elicited(extra, `second${name}?`)}`;
  },
  ask_all: async ({ extra }) =>
    (await Promise.all([elicited(extra, "all?"), sampled(extra, "all?"), rooted(extra)])).join(", "),
  sample: ({ args, extra }) => sampled(extra, args.prompt),
  roots: ({ extra }) => rooted(extra),
  peer: ({ server }) =>
    Object.keys(server.getClientCapabilities())
      .filter((name) => name !== "experimental")
      .sort()
      .join(" "),
  async touch({ args }) {
    for (const one of subscribers.get(args.uri) ?? []) await one.sendResourceUpdated({ uri: args.uri });
    return "Touched.";
  },
  async grow({ server }) {
    await server.sendToolListChanged();
    return "Grown.";
  },
};

function made() {
  const { name, version, instructions } = OFFER;
  const capabilities = {
    tools: { listChanged: true },
    resources: { subscribe: true },
    prompts: {},
    completions: {},
    logging: {},
  };
  const server = new Server({ name, version }, { capabilities, instructions });
  const answer = (schema, handler) => server.setRequestHandler(schema, handler);

  answer(types.ListToolsRequestSchema, () => ({ tools: OFFER.tools }));
  answer(types.ListResourcesRequestSchema, () => ({ resources: OFFER.resources }));
  answer(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: OFFER.templates }));
  answer(types.ListPromptsRequestSchema, () => ({ prompts: OFFER.prompts }));
  answer(types.CallToolRequestSchema, async ({ params }, extra) => {
    if (!Object.hasOwn(TOOLS, params.name)) {
      throw new types.McpError(types.ErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    }
    const args = params.arguments ?? {};
    extra.signal.addEventListener("abort", () => stopped.add(args.name));
    return text(await TOOLS[params.name]({ server, extra, args }));
  });
  answer(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
    if (uri !== "matrix://about" && !uri.startsWith("matrix://item/")) {
      throw new types.McpError(-32002, "Resource not found", { uri });
    }
    return { contents: [{ uri, mimeType: "text/plain", text: `the text of ${uri}` }] };
  });
  answer(types.GetPromptRequestSchema, ({ params }) => ({
    messages: [user(`Please greet ${params.arguments.name}.`)],
  }));
  answer(types.CompleteRequestSchema, ({ params }) => {
    const start = params.argument.value.toLowerCase();
    return { completion: { values: OFFER.names.filter((name) => name.toLowerCase().startsWith(start)) } };
  });
  answer(types.SubscribeRequestSchema, ({ params: { uri } }) => {
    subscribers.set(uri, (subscribers.get(uri) ?? new Set()).add(server));
    return {};
  });
  answer(types.UnsubscribeRequestSchema, ({ params: { uri } }) => {
    subscribers.get(uri)?.delete(server);
    return {};
  });
  server.onclose = () => subscribers.forEach((servers) => servers.delete(server));
  return server;
}

async function serveStdio() {
  const { StdioServerTransport } = await load("server/stdio.js");
  await made().connect(new StdioServerTransport());
  process.stdin.on("close", () => process.exit(0));
}

async function httpHandler() {
  const { StreamableHTTPServerTransport } = await load("server/streamableHttp.js");
  const transports = new Map();
  return async (request, response) => {
    let transport = transports.get(request.headers["mcp-session-id"]);
    if (transport === undefined) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => transports.set(id, transport),
        onsessionclosed: (id) => transports.delete(id),
      });
      await made().connect(transport);
    }
    await transport.handleRequest(request, response);
  };
}

async function sseHandler() {
  const { SSEServerTransport } = await load("server/sse.js");
  const transports = new Map();
  return async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, "http://127.0.0.1");
    if (request.method === "GET" && pathname === "/sse") {
      const transport = new SSEServerTransport("/messages", response);
      transports.set(transport.sessionId, transport);
      response.on("close", () => transports.delete(transport.sessionId));
      await made().connect(transport);
      return;
    }
    const transport = transports.get(searchParams.get("sessionId"));
    if (request.method === "POST" && transport) await transport.handlePostMessage(request, response);
    else response.writeHead(pathname === "/messages" ? 404 : 405).end();
  };
}

function listen(handler, name) {
  const web = createServer(handler);
  web.listen(0, "127.0.0.1", () => console.error(`listens: http://127.0.0.1:${web.address().port}${name}`));
}

if (how === "stdio") await serveStdio();
else if (how === "http") listen(await httpHandler(), "/mcp");
else listen(await sseHandler(), "/sse");
