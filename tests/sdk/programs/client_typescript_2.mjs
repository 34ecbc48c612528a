// The client of the matrix on the TypeScript SDK 2.x, in the modern era; see `typescript_talk.mjs`.
//
// `node client_typescript_2.mjs FOLDER`, FOLDER being the one that holds `node_modules`. The SDK opens with
// the handshake unless it is told otherwise; with `auto` it asks `server/discover` and falls back if that
// is not answered. `about` then tells the revision it came to.

import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Peer, main } from "./typescript_talk.mjs";

const [folder] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/client${name}`)));

const { Client, StreamableHTTPClientTransport } = await load("");
const { StdioClientTransport } = await load("/stdio");

class Modern extends Peer {
  level = undefined;

  about() {
    const { name, version } = this.client.getServerVersion();
    return [this.client.getNegotiatedProtocolVersion(), name, version, this.client.getInstructions()];
  }

  /** Every request says it for itself. */
  wantLogs(level) {
    this.level = level;
  }

  async listen(uri) {
    const subscription = await this.client.listen({ toolsListChanged: true, resourceSubscriptions: [uri] });
    return () => subscription.close();
  }

  close() {
    return this.client.close();
  }
}

function transport({ how, url, argv, env, cwd }) {
  if (how === "http") return new StreamableHTTPClientTransport(new URL(url));
  return new StdioClientTransport({ command: argv[0], args: argv.slice(1), env, cwd });
}

await main(async (target, host) => {
  const client = new Client(
    { name: "typescript-sdk-2", version: "1.0.0" },
    {
      capabilities: { sampling: {}, elicitation: { form: {} }, roots: {} },
      versionNegotiation: { mode: "auto" },
    },
  );
  client.setRequestHandler("sampling/createMessage", (request) => host.sample(request));
  client.setRequestHandler("elicitation/create", (request) => host.elicit(request));
  client.setRequestHandler("roots/list", () => host.listRoots());
  client.setNotificationHandler("notifications/message", ({ params }) => {
    host.logs.push(params.level);
    host.tell();
  });
  client.setNotificationHandler("notifications/resources/updated", ({ params }) => {
    host.updated.push(params.uri);
    host.tell();
  });
  client.setNotificationHandler("notifications/tools/list_changed", () => {
    host.grown += 1;
    host.tell();
  });
  const peer = new Modern(client, host, (params, options) => {
    const _meta = peer.level && { "io.modelcontextprotocol/logLevel": peer.level };
    return client.callTool({ ...params, _meta }, options);
  });
  await client.connect(transport(target));
  return peer;
});
