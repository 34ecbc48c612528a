// The server of the matrix on the TypeScript SDK 2.x, which serves the modern era and nothing else here.
//
// `node server_typescript_2.mjs FOLDER stdio|http`, FOLDER being the one that holds `node_modules`; over
// HTTP it prints its address. What it offers is in `offer.json`, and is the same on every SDK. The SDK
// serves the handshake too unless it is told `legacy: "reject"`; only then has a bridge before it to
// translate for old clients.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [folder, how] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/${name}`)));

const { ProtocolError, ProtocolErrorCode, Server, createMcpHandler, createRequestStateCodec, inputRequired } =
  await load("server");

const OFFER = JSON.parse(readFileSync(new URL("offer.json", import.meta.url)));
const CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";
const PATIENCE = 5000;

const codec = createRequestStateCodec({ key: randomBytes(32) });
const stopped = new Set();

/** Tells the streams that want it what changed; over stdio that is the matter of the one connection. */
let notify;

const user = (said) => ({ role: "user", content: { type: "text", text: said } });
const elicitation = (message) => inputRequired.elicit({ message, requestedSchema: OFFER.form });
const sampling = (prompt) => inputRequired.createMessage({ messages: [user(prompt)], maxTokens: 9 });

/** What an answer of any kind says, in a few words. */
function told(answer) {
  if (answer.action) return `${answer.action}: ${answer.content.answer}`;
  return answer.roots ? answer.roots[0].uri : answer.content.text;
}

/** Unwinds a tool that has to ask first; it runs from its start again when the answers are there. */
class Unanswered extends Error {
  constructor(requests) {
    super("input required");
    this.requests = requests;
  }
}

/** One round of a call, with the answers of this round and of those before. */
class Call {
  constructor(args, ctx) {
    this.args = args;
    this.ctx = ctx;
    this.answers = { ...ctx.mcpReq.requestState()?.answers, ...ctx.mcpReq.inputResponses };
  }

  asked(requests) {
    const lacking = Object.entries(requests).filter(([key]) => !(key in this.answers));
    if (lacking.length > 0) throw new Unanswered(Object.fromEntries(lacking));
    return Object.keys(requests).map((key) => told(this.answers[key]));
  }
}

const TOOLS = {
  echo: ({ args }) => args.text,
  /** A note comes before its pause: clients of the SDK 1.x lose one that comes with the answer. */
  async slow({ args, ctx }) {
    const { seconds, steps } = args;
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let progress = 1; progress <= steps; progress += 1) {
      const params = { progressToken, progress, total: steps };
      if (progressToken !== undefined) await ctx.mcpReq.notify({ method: "notifications/progress", params });
      await sleep((seconds * 1000) / steps, undefined, { signal: ctx.mcpReq.signal });
    }
    return "Waited.";
  },
  async stopped({ args }) {
    for (const late = Date.now() + PATIENCE; Date.now() < late; await sleep(20)) {
      if (stopped.has(args.name)) return "stopped";
    }
    return "still running";
  },
  async log({ ctx }) {
    for (const level of ["debug", "info", "warning", "error"]) {
      await ctx.mcpReq.log(level, `said at ${level}`, "matrix");
    }
    return "Logged.";
  },
  ask: (call) => call.asked({ user: elicitation(call.args.question) })[0],
  ask_twice(call) {
    const { name = "" } = call.args;
    const first = call.asked({ first: elicitation(`first${name}?`) });
    return [...first, ...call.asked({ second: elicitation(`second${name}?`) })].join(", ");
  },
  ask_all: (call) =>
    call
      .asked({ user: elicitation("all?"), model: sampling("all?"), host: inputRequired.listRoots() })
      .join(", "),
  sample: (call) => call.asked({ model: sampling(call.args.prompt) })[0],
  roots: (call) => call.asked({ host: inputRequired.listRoots() })[0],
  peer: ({ ctx }) =>
    Object.keys(ctx.mcpReq.envelope[CAPABILITIES])
      .filter((name) => name !== "experimental" && name !== "extensions")
      .sort()
      .join(" "),
  touch({ args }) {
    notify.resourceUpdated(args.uri);
    return "Touched.";
  },
  grow() {
    notify.toolsChanged();
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
  const options = { capabilities, instructions, requestState: { verify: codec.verify } };
  const server = new Server({ name, version }, options);
  const answer = (method, handler) => server.setRequestHandler(method, handler);

  answer("tools/list", () => ({ tools: OFFER.tools }));
  answer("resources/list", () => ({ resources: OFFER.resources }));
  answer("resources/templates/list", () => ({ resourceTemplates: OFFER.templates }));
  answer("prompts/list", () => ({ prompts: OFFER.prompts }));
  answer("tools/call", async ({ params }, ctx) => {
    if (!Object.hasOwn(TOOLS, params.name)) {
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, `Unknown tool: ${params.name}`);
    }
    const call = new Call(params.arguments ?? {}, ctx);
    ctx.mcpReq.signal.addEventListener("abort", () => stopped.add(call.args.name));
    try {
      return { content: [{ type: "text", text: await TOOLS[params.name](call) }] };
    } catch (lack) {
      if (!(lack instanceof Unanswered)) throw lack;
      const kept = Object.keys(call.answers).length > 0;
      const requestState = kept ? await codec.mint({ answers: call.answers }, ctx) : undefined;
      return inputRequired({ inputRequests: lack.requests, requestState });
    }
  });
  answer("resources/read", ({ params: { uri } }) => {
    if (uri !== "matrix://about" && !uri.startsWith("matrix://item/")) {
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, "Resource not found", { uri });
    }
    return { contents: [{ uri, mimeType: "text/plain", text: `the text of ${uri}` }] };
  });
  answer("prompts/get", ({ params }) => ({ messages: [user(`Please greet ${params.arguments.name}.`)] }));
  answer("completion/complete", ({ params }) => {
    const start = params.argument.value.toLowerCase();
    return { completion: { values: OFFER.names.filter((name) => name.toLowerCase().startsWith(start)) } };
  });
  return server;
}

async function serveStdio() {
  const stdio = await load("server/stdio");
  stdio.serveStdio(
    () => {
      const server = made();
      notify = {
        resourceUpdated: (uri) => server.sendResourceUpdated({ uri }),
        toolsChanged: () => server.sendToolListChanged(),
      };
      return server;
    },
    { legacy: "reject" },
  );
}

async function serveHttp() {
  const { toNodeHandler } = await load("node");
  const handler = createMcpHandler(made, { legacy: "reject" });
  notify = handler.notify;
  const web = createServer(toNodeHandler(handler));
  web.listen(0, "127.0.0.1", () => console.error(`listens: http://127.0.0.1:${web.address().port}/mcp`));
}

if (how === "stdio") await serveStdio();
else await serveHttp();
