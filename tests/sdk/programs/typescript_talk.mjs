// The conversation of `python_talk.py` for both generations of the TypeScript SDK: the same steps, told in
// the same way. What differs between the SDKs is in `peer`, made for each target by the program.

const PATIENCE = 15_000;
const FAILURES = 3;
const AT_ONCE = 3;
const ODD = "é — 読 🎉 \u2028\u2029\x85 \"\\\t\r\n {}[] \x7f \u0000 end";

/** What a host application supplies to its client, and what it was told. */
export class Host {
  logs = [];
  updated = [];
  grown = 0;
  waiting = [];

  sample({ params }) {
    const asked = params.messages[0].content.text;
    return { role: "assistant", model: "none", content: { type: "text", text: `a model on ${asked}` } };
  }

  elicit({ params }) {
    return { action: "accept", content: { answer: `a user on ${params.message}` } };
  }

  listRoots() {
    return { roots: [{ uri: "file:///matrix", name: "the root" }] };
  }

  tell() {
    this.waiting = this.waiting.filter(({ condition, resolve }) => !condition() || resolve());
  }

  until(condition) {
    if (condition()) return undefined;
    return new Promise((resolve) => this.waiting.push({ condition, resolve }));
  }
}

/** What both SDKs have, with the same names; `call(params, options)` calls a tool in the way of one. */
export class Peer {
  constructor(client, host, call) {
    this.client = client;
    this.host = host;
    this.call = call;
  }

  async lists() {
    const names = (items, key) => items.map((item) => item[key]);
    return {
      tools: names((await this.client.listTools()).tools, "name").sort(),
      resources: names((await this.client.listResources()).resources, "uri"),
      templates: names((await this.client.listResourceTemplates()).resourceTemplates, "uriTemplate"),
      prompts: names((await this.client.listPrompts()).prompts, "name"),
    };
  }

  async text(name, args = {}, options = undefined) {
    const result = await this.call({ name, arguments: args }, options);
    if (result.isError) throw new Error(JSON.stringify(result));
    return result.content[0].text;
  }

  async prompt(name) {
    const { messages } = await this.client.getPrompt({ name: "greet", arguments: { name } });
    return messages[0].content.text;
  }

  async read(uri) {
    return (await this.client.readResource({ uri })).contents[0].text;
  }

  async complete(value) {
    const ref = { type: "ref/prompt", name: "greet" };
    return (await this.client.complete({ ref, argument: { name: "name", value } })).completion.values;
  }
}

const STEPS = {
  about: (peer) => peer.about(),
  lists: (peer) => peer.lists(),
  async reads(peer, name) {
    const completion = await peer.complete("a");
    return [await peer.prompt("Zoë 🎉"), await peer.read(`matrix://item/${name}`), completion];
  },
  async echo(peer) {
    const byHeader = await peer.text("echo", { text: "by header", region: "Zürich — 読" });
    return [(await peer.text("echo", { text: ODD })) === ODD, byHeader];
  },
  /** SDK 1.x loses a note that it reads together with the answer, as a busy machine makes it do: then slower. */
  async progress(peer, name) {
    let notes;
    let said;
    for (let seconds = 0.2; seconds < 4 && notes?.length !== 3; seconds *= 3) {
      notes = [];
      const onprogress = (note) => notes.push([note.progress, note.total]);
      said = await peer.text("slow", { seconds, steps: 3, name }, { onprogress });
    }
    return [said, notes];
  },
  async log(peer) {
    await peer.wantLogs("warning");
    await peer.text("log");
    await peer.host.until(() => peer.host.logs.length > 1);
    return peer.host.logs;
  },
  ask: (peer) => peer.text("ask", { question: "who é?" }),
  "ask twice": (peer) => peer.text("ask_twice"),
  "ask all": (peer) => peer.text("ask_all"),
  sample: (peer) => peer.text("sample", { prompt: "what é?" }),
  roots: (peer) => peer.text("roots"),
  declared: (peer) => peer.text("peer"),
  /** Of one's own resource: others touch theirs at the same time, and that must not be heard here. */
  async changes(peer, name) {
    const uri = `matrix://item/${name}`;
    const stop = await peer.listen(uri);
    await peer.text("touch", { uri });
    await peer.host.until(() => peer.host.updated.length > 0);
    await peer.text("grow");
    await peer.host.until(() => peer.host.grown > 0);
    await stop();
    return [...new Set(peer.host.updated)].map((one) => one.replace(name, "own")).sort();
  },
  async cancel(peer, name) {
    const abort = new AbortController();
    let begin;
    const begun = new Promise((resolve) => (begin = resolve));
    const args = { seconds: 60, steps: 600, name: `cancelled ${name}` };
    const call = peer.text("slow", args, { signal: abort.signal, onprogress: begin });
    const outcome = call.then((said) => said, () => "cancelled");
    await begun;
    abort.abort("enough");
    const heard = await peer.text("stopped", { name: `cancelled ${name}` });
    return [await outcome, heard, await peer.text("echo", { text: "after" })];
  },
  "unknown tool": (peer) => failure(peer.call({ name: "nothing", arguments: {} })),
  "missing resource": (peer) => failure(peer.client.readResource({ uri: "other://nothing" })),
  async together(peer, name) {
    const call = async (steps) => [
      await peer.text("slow", { seconds: 0.1, steps, name }),
      await peer.text("ask", { question: String(steps) }),
    ];
    return Promise.all([call(1), call(2), call(3)]);
  },
};

/**
 * Code and message of the error that this ends in; clients and servers on SDK 1.x put words of
 * their own before the message.
 */
async function failure(promise) {
  try {
    return JSON.stringify(await promise);
  } catch (error) {
    return [error.code, error.message.replace(/^(MCP error -?\d+: )+/, "")];
  }
}

function within(promise, milliseconds) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("nothing came in time")), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

const why = (error) => `${error.name}: ${error.message}`.slice(0, 500);

async function converse(peer, name, seen) {
  let failures = 0;
  for (const [step, act] of Object.entries(STEPS)) {
    try {
      seen[step] = await within(Promise.resolve(act(peer, name)), PATIENCE);
    } catch (error) {
      seen[step] = why(error);
      failures += 1;
    }
    if (failures === FAILURES) return;
  }
}

/** `open(target, host)` resolves to a peer that has connected. */
async function attempt(open, target) {
  const began = performance.now();
  const seen = {};
  try {
    const peer = await within(open(target, new Host()), 2 * PATIENCE);
    await converse(peer, target.name, seen);
    await within(peer.close(), PATIENCE);
  } catch (error) {
    seen.connection = why(error);
  }
  console.log(JSON.stringify({ name: target.name, seen, seconds: (performance.now() - began) / 1000 }));
}

export async function main(open) {
  let said = "";
  for await (const chunk of process.stdin.setEncoding("utf8")) said += chunk;
  const targets = JSON.parse(said);
  const worker = async () => {
    while (targets.length > 0) await attempt(open, targets.shift());
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  process.exit(0); // whatever a failed connection still holds open
}
