// Preloaded: the program binds every interface of the machine unless it is told where to listen, and it cannot be told.
const { Server } = require('net')
const listen = Server.prototype.listen
Server.prototype.listen = function (where, ...rest) {
  if (typeof where === 'number') return listen.call(this, { port: where, host: '127.0.0.1' }, ...rest.filter((each) => typeof each === 'function'))
  return listen.call(this, { ...where, host: '127.0.0.1' }, ...rest)
}
