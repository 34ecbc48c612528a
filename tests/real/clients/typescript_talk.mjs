// The conversation of `python_sdk_1.py` for both generations of the TypeScript SDK, whose clients differ
// in how they are set up and in how a tool is called (`call`), but not in the rest.

const PATIENCE = 30_000;
const DOCUMENT = "demo://resource/static/document/features.md";
const ODD = "é — 読 🎉 \u2028\u2029\x85 \"\\\t\r\n {}[] \x7f \u0000 end";
const BIG = "0123456789abcdé読🎉".repeat(65536); // 1 MiB of characters, more in bytes
const LONG = "trigger-long-running-operation";

/** What a host application supplies to its client, and what it was told. */
export class Host {
  sampled = null;
  elicited = null;
  logs = [];
  updated = [];
  waiting = [];

  sample(params) {
    this.sampled = params.messages[0].content.text;
    return {
      role: "assistant",
      model: "none",
      content: { type: "text", text: "the answer of the model" },
    };
  }

  elicit(params) {
    this.elicited = params.message;
    return { action: "accept", content: { name: "Ada é", check: true, integer: 7 } };
  }

  listRoots() {
    return { roots: [{ uri: "file:///tmp/real", name: "the root" }] };
  }

  log(params) {
    this.logs.push(String(params.data));
    this.tell();
  }

  update(params) {
    this.updated.push(params.uri);
    this.tell();
  }

  tell() {
    this.waiting = this.waiting.filter(({ condition, resolve }) => !condition() || resolve());
  }

  until(condition) {
    if (condition()) return undefined;
    const happened = new Promise((resolve) => this.waiting.push({ condition, resolve }));
    return within(happened, `nothing came that fulfils ${condition}`);
  }

  logged(start) {
    return this.logs.some((line) => line.startsWith(start));
  }
}

function within(promise, complaint) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(complaint)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function paged(ask, name) {
  const found = [];
  let cursor;
  do {
    const page = await ask(cursor === undefined ? {} : { cursor });
    found.push(...page[name]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
}

async function lists(client) {
  const names = (items, key) => items.map((item) => item[key]).sort();
  return {
    tools: names(await paged((params) => client.listTools(params), "tools"), "name"),
    prompts: names(await paged((params) => client.listPrompts(params), "prompts"), "name"),
    resources: (await paged((params) => client.listResources(params), "resources")).length,
    templates: names(
      await paged((params) => client.listResourceTemplates(params), "resourceTemplates"),
      "uriTemplate",
    ),
  };
}

async function reads(client) {
  const prompt = await client.getPrompt({ name: "args-prompt", arguments: { city: "Zürich" } });
  const resource = await client.readResource({ uri: DOCUMENT });
  const { completion } = await client.complete({
    ref: { type: "ref/prompt", name: "completable-prompt" },
    argument: { name: "name", value: "A" },
    context: { arguments: { department: "Engineering" } },
  });
  return {
    prompt: prompt.messages[0].content.text,
    resource: resource.contents[0].text.startsWith("# Everything Server - Features"),
    completion: completion.values,
  };
}

async function progress(text) {
  const notes = [];
  // SDK 2.x tells of its own rounds too, without a total: it may be asked for its roots meanwhile.
  const onprogress = (note) => note.total === undefined || notes.push([note.progress, note.total]);
  const said = await text(LONG, { duration: 0.3, steps: 3 }, { onprogress });
  return { long: said, progress: notes };
}

async function questions(text, content, host) {
  const sampling = await text("trigger-sampling-request", { prompt: "a question é", maxTokens: 9 });
  const elicitation = await content("trigger-elicitation-request", {});
  const roots = await text("get-roots-list", {});
  return {
    sampled: host.sampled,
    sampling: sampling.includes("the answer of the model"),
    elicited: host.elicited,
    elicitation: elicitation[1].text,
    roots: roots.split("\n\n").slice(0, 2),
  };
}

async function notifications(client, text, host) {
  await client.setLoggingLevel("debug");
  await client.subscribeResource({ uri: DOCUMENT });
  await host.until(() => host.logged("Received Subscribe Resource"));
  await text("toggle-subscriber-updates", {});
  await host.until(() => host.updated.includes(DOCUMENT));
  await text("toggle-subscriber-updates", {});
  await client.setLoggingLevel("error");
  await client.unsubscribeResource({ uri: DOCUMENT });
  return { updated: [...new Set(host.updated)].sort(), overheard: host.logged("Received Unsubscribe") };
}

async function cancellation(text) {
  const abort = new AbortController();
  let begin;
  const begun = new Promise((resolve) => (begin = resolve));
  const options = { signal: abort.signal, onprogress: begin };
  const outcome = text(LONG, { duration: 60, steps: 600 }, options).then(
    () => "answered",
    () => "cancelled",
  );
  await within(begun, "the long call made no progress");
  abort.abort("enough");
  return { cancelled: (await outcome) === "cancelled", after: await text("echo", { message: "after" }) };
}

/** `call(params, options)` calls a tool in the way of the SDK at hand; `modern` leaves out what 2026-07-28 lacks. */
export async function converse(client, host, call, modern = false) {
  const content = async (name, args, options) => {
    const result = await call({ name, arguments: args }, options);
    if (result.isError) throw new Error(JSON.stringify(result));
    return result.content;
  };
  const text = async (...request) => (await content(...request))[0].text;
  const seen = {
    ...(await lists(client)),
    ...(await reads(client)),
    echo: (await text("echo", { message: ODD })) === `Echo: ${ODD}`,
    ...(await progress(text)),
    ...(await questions(text, content, host)),
    ...(modern ? {} : await notifications(client, text, host)),
    ...(await cancellation(text)),
  };
  if (!modern) await client.ping();
  const half = (steps) => text(LONG, { duration: 0.2, steps });
  return {
    ...seen,
    big: (await text("echo", { message: BIG })) === `Echo: ${BIG}`,
    together: await Promise.all([half(1), half(2)]),
  };
}
