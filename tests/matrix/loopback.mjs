// Loaded by node ahead of server-everything, which would listen on every interface and cannot tell
// which port it was given: it listens on the loopback only, and says where.
import net from "node:net";

const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => {
    const base = `http://127.0.0.1:${this.address().port}`;
    console.error(`listens: ${base}/mcp ${base}/sse`);
  });
  return listen.call(this, port, "127.0.0.1", ...rest);
};
