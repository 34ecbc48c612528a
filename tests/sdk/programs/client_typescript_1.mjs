// The client of the matrix on the TypeScript SDK 1.x, which is of the legacy era; see `typescript_talk.mjs`.
//
// `node client_typescript_1.mjs FOLDER`, FOLDER being the one that holds `node_modules`.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Peer, main } from "./typescript_talk.mjs";

const [folder] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/${name}`)));

const types = await load("types.js");
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { SSEClientTransport } = await load("client/sse.js");
const { StdioClientTransport } = await load("client/stdio.js");

class Legacy extends Peer {
  about() {
    const { name, version } = this.client.getServerVersion();
    return [this.protocol, name, version, this.client.getInstructions()];
  }

  wantLogs(level) {
    return this.client.setLoggingLevel(level);
  }

  async listen(uri) {
    await this.client.subscribeResource({ uri });
    return () => this.client.unsubscribeResource({ uri });
  }

  async close() {
    await this.client.transport.terminateSession?.();
    await this.client.close();
  }
}

function transport({ how, url, argv, env, cwd }) {
  if (how === "http") return new StreamableHTTPClientTransport(new URL(url));
  if (how === "sse") return new SSEClientTransport(new URL(url));
  return new StdioClientTransport({ command: argv[0], args: argv.slice(1), env, cwd });
}

/** Only the transport is told which revision was agreed on. */
function watched(peer, carrier) {
  const set = carrier.setProtocolVersion?.bind(carrier);
  carrier.setProtocolVersion = (version) => {
    peer.protocol = version;
    set?.(version);
  };
  return carrier;
}

await main(async (target, host) => {
  const client = new Client(
    { name: "typescript-sdk-1", version: "1.0.0" },
    { capabilities: { sampling: {}, elicitation: {}, roots: {} } },
  );
  client.setRequestHandler(types.CreateMessageRequestSchema, (request) => host.sample(request));
  client.setRequestHandler(types.ElicitRequestSchema, (request) => host.elicit(request));
  client.setRequestHandler(types.ListRootsRequestSchema, () => host.listRoots());
  client.setNotificationHandler(types.LoggingMessageNotificationSchema, ({ params }) => {
    host.logs.push(params.level);
    host.tell();
  });
  client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, ({ params }) => {
    host.updated.push(params.uri);
    host.tell();
  });
  client.setNotificationHandler(types.ToolListChangedNotificationSchema, () => {
    host.grown += 1;
    host.tell();
  });
  const peer = new Legacy(client, host, (params, options) => client.callTool(params, undefined, options));
  await client.connect(watched(peer, transport(target)));
  return peer;
});
