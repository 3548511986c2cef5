// Starts the stand-in for Azure Cosmos DB, which npm has put into MODULES.
//
// usage: node cosmosdb-server.js MODULES PORT [HOST]
//
// Set right here: connections are kept, and reading an item that is missing is answered by 404, not by 500.
const [modules, port, host] = process.argv.slice(2);
const root = `${modules}/@vercel/cosmosdb-server/lib`;
const reading = require(`${root}/handler/read-document`);
const read = reading.default;
reading.default = (account, request, response, place) => {
  request.headers["x-ms-documentdb-query-enablecrosspartition"] = "true"; // else it compares keys before it looks
  return read(account, request, response, place);
};
const server = require(root).createHttpsServer({ keepAlive: true });
server.keepAliveTimeout = 120000;
server.listen(Number(port), host || "127.0.0.1");
