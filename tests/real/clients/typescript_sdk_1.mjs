// TypeScript SDK 1.x before server-everything: the conversation of `python_sdk_1.py`.
//
// Run as `node typescript_sdk_1.mjs URL FOLDER`, FOLDER being the one that holds `node_modules`: the
// program stays with the tests and the packages stay in the cache.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import path from "node:path";
import { Host, converse } from "./typescript_talk.mjs";

const [url, folder] = process.argv.slice(2);
const { resolve } = createRequire(path.join(folder, "package.json"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/${name}`)));

const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const schemas = await load("types.js");

const host = new Host();
const client = new Client(
  { name: "typescript-sdk-1", version: "1.0.0" },
  { capabilities: { sampling: {}, elicitation: { form: {}, url: {} }, roots: {} } },
);
client.setRequestHandler(schemas.CreateMessageRequestSchema, (request) => host.sample(request.params));
client.setRequestHandler(schemas.ElicitRequestSchema, (request) => host.elicit(request.params));
client.setRequestHandler(schemas.ListRootsRequestSchema, () => host.listRoots());
client.setNotificationHandler(schemas.LoggingMessageNotificationSchema, (note) => host.log(note.params));
client.setNotificationHandler(schemas.ResourceUpdatedNotificationSchema, (note) => host.update(note.params));

const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const seen = {
  server: client.getServerVersion().name,
  protocol: transport.protocolVersion,
  ...(await converse(client, host, (params, options) => client.callTool(params, undefined, options))),
};
await transport.terminateSession();
await client.close();
console.log(JSON.stringify(seen));
