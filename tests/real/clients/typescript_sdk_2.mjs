// TypeScript SDK 2.x before server-everything: the conversation of `python_sdk_1.py`, by the new client.
//
// Run as `node typescript_sdk_2.mjs URL FOLDER MODE`. MODE is how the client finds the revision: `legacy`
// opens with initialize, `auto` asks `server/discover` first and falls back.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";
import { Host, converse } from "./typescript_talk.mjs";

const [url, folder, mode] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const { Client, StreamableHTTPClientTransport } = await import(
  pathToFileURL(resolve("@modelcontextprotocol/client"))
);

const host = new Host();
const client = new Client(
  { name: "typescript-sdk-2", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} }, versionNegotiation: { mode } },
);
client.setRequestHandler("sampling/createMessage", (request) => host.sample(request.params));
client.setRequestHandler("elicitation/create", (request) => host.elicit(request.params));
client.setRequestHandler("roots/list", () => host.listRoots());
client.setNotificationHandler("notifications/message", (note) => host.log(note.params));
client.setNotificationHandler("notifications/resources/updated", (note) => host.update(note.params));

const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const protocol = client.getNegotiatedProtocolVersion();
const call = (params, options) => client.callTool(params, options);
const seen = {
  server: client.getServerVersion().name,
  protocol,
  ...(await converse(client, host, call, protocol === "2026-07-28")),
};
await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
