"""The gateway, before services in Node.js and bare sockets."""
