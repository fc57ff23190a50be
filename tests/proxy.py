"""A TCP proxy that fails as told, for every store that is reached through a network.

    with Proxy(("127.0.0.1", server.port)) as proxy:
        client connects to proxy.port
        proxy.hold(); proxy.heal()            # a black hole, both ways or one; what was sent arrives later
        proxy.cut()                           # RST to both ends of every connection
        proxy.refuse(); proxy.accept()        # new connections
        proxy.delay_s = 0.5                   # of every piece of data, each way
        fault = proxy.watch(LosesReply("holdfast.acquire"))
        fault.happened                        # how often: a test asserts that it did

What watches sees each piece of data, and may keep it back, change it, or have the connection cut:
PostgresWatcher parses PostgreSQL's messages, so that a fault hits a certain call.
"""
import asyncio
import contextlib
import socket
import struct
import threading

from servers import free_port

UP, DOWN = "up", "down"  # to the server, to the client


class Watcher:
    """One per connection. The watcher that a test makes is the first of them and the others' parent."""

    passes_end = True  # whether the server is told when the client is gone

    def of_connection(self):
        """The watcher of a new connection."""
        return self

    def sees(self, _direction, data):
        """What is to be passed on in place of `data`; None: cut the connection."""
        return data


class Link:
    """One connection: the sockets' two ends and what passes between them."""

    def __init__(self, proxy, client, server):
        self.proxy = proxy
        self.watcher = proxy.watcher.of_connection()
        self.streams = {UP: (client[0], server[1]), DOWN: (server[0], client[1])}
        self.is_cut = False

    async def pump(self, direction):
        reader, writer = self.streams[direction]
        while data := await reader.read(65536):
            data = self.watcher.sees(direction, data)
            if data is None:
                return self.cut()
            await asyncio.sleep(self.proxy.delay_s)
            await self.proxy.open_way[direction].wait()
            if self.is_cut:
                return
            writer.write(data)
            await writer.drain()
        await self.proxy.open_way[direction].wait()
        if direction == DOWN or self.watcher.passes_end:
            writer.write_eof()

    async def run(self):
        pumps = [asyncio.ensure_future(self.pump(direction)) for direction in (UP, DOWN)]
        await asyncio.gather(*pumps, return_exceptions=True)
        for _, writer in self.streams.values():
            writer.close()

    def cut(self):
        self.is_cut = True
        for _, writer in self.streams.values():
            with contextlib.suppress(OSError):  # it has been closed just now
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    def __init__(self, target):
        self.target = target
        self.watcher = Watcher()
        self.delay_s = 0
        self.port = free_port()
        self.links = set()
        self.connections = 0
        self.listener = None
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.call(self.set_up())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=60)

    async def set_up(self):
        self.open_way = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        await self.set_ways(True, True)
        await self.listen()

    async def listen(self):
        if not self.listener:
            self.listener = await asyncio.start_server(self.accept_one, "127.0.0.1", self.port, backlog=500)

    async def accept_one(self, *client):
        self.connections += 1
        try:
            server = await asyncio.open_connection(*self.target)
        except OSError:
            client[1].transport.abort()
            return
        link = Link(self, client, server)
        self.links.add(link)
        await link.run()
        self.links.discard(link)

    async def set_ways(self, up, down):
        for direction, is_open in ((UP, up), (DOWN, down)):
            (self.open_way[direction].set if is_open else self.open_way[direction].clear)()

    async def cut_all(self):
        for link in list(self.links):
            link.cut()

    async def stop_listening(self):
        if self.listener:
            self.listener.close()
            self.listener = None

    # What tests call.

    def watch(self, watcher):
        """From now on every new connection is watched by it."""
        self.watcher = watcher
        return watcher

    def hold(self, up=True, down=True):
        """Nothing gets through in these directions: neither data nor the end of a connection."""
        self.call(self.set_ways(not up, not down))

    def heal(self):
        self.call(self.set_ways(True, True))

    def cut(self):
        """A held way stays held for new connections."""
        self.call(self.cut_all())

    def refuse(self):
        self.call(self.stop_listening())

    def accept(self):
        self.call(self.listen())

    def close(self):
        self.refuse()
        self.heal()
        self.cut()
        with contextlib.suppress(asyncio.CancelledError):
            self.call(self.cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def cancel_rest(self):
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


# ---- PostgreSQL


STARTUP = 196608  # protocol 3.0; before it there may be requests for encryption, answered by one byte


class Messages:
    """Cuts a stream of PostgreSQL's messages into (type, payload, bytes); the first ones have no type."""

    def __init__(self, typed):
        self.typed = typed
        self.rest = b""
        self.bare_bytes = 0  # single bytes that come before anything else

    def feed(self, data):
        self.rest += data
        while True:
            head = 1 if self.typed else 0
            if self.bare_bytes and self.rest:
                size = 1
                self.bare_bytes -= 1
                yield b"", self.rest[:1], self.rest[:1]
            elif len(self.rest) >= head + 4:
                size = head + struct.unpack_from("!I", self.rest, head)[0]
                if len(self.rest) < size:
                    return
                yield self.rest[:head], self.rest[head + 4:size], self.rest[:size]
            else:
                return
            self.rest = self.rest[size:]


class PostgresWatcher(Watcher):
    """Knows which statements are sent and when each is answered. Counts over all connections."""

    def __init__(self, parent=None):
        self.parent = parent or self
        self.messages = {UP: Messages(typed=False), DOWN: Messages(typed=True)}
        self.asked = 0  # how many ReadyForQuery are due in all
        self.answered = 0
        if not parent:
            self.statements = []  # every one that was sent, in order
            self.round_trips = 0

    def of_connection(self):
        return type(self)(parent=self)

    def sees(self, direction, data):
        passed = b""
        for kind, payload, raw in self.messages[direction].feed(data):
            see = self.sees_request if direction == UP else self.sees_reply
            raw = see(kind, payload, raw)
            if raw is None:
                return None
            passed += raw
        return passed

    def sees_request(self, kind, payload, raw):
        if kind == b"":
            if struct.unpack_from("!I", payload)[0] == STARTUP:
                self.messages[UP].typed = True
                self.asked += 1
            else:
                self.messages[DOWN].bare_bytes += 1
        if kind in (b"P", b"Q"):  # before it is counted: its answer is the next one
            statement = payload.split(b"\0")[1 if kind == b"P" else 0].decode()
            self.parent.statements.append(statement)
            raw = self.on_statement(statement, raw)
        if kind in (b"S", b"Q"):
            self.asked += 1
            self.parent.round_trips += 1
        return raw

    def sees_reply(self, kind, _payload, raw):
        if kind == b"Z":
            self.answered += 1
            return self.on_answered(raw)
        return raw

    def on_statement(self, _statement, raw):
        return raw

    def on_answered(self, raw):
        return raw


class Fault(PostgresWatcher):
    """Happens to the n-th statement that contains `call`, counted over all connections, `times` times."""

    def __init__(self, call=None, n=1, times=1, parent=None):
        super().__init__(parent)
        if not parent:
            self.call, self.n, self.times = call, n, times
            self.seen = self.happened = 0

    def of_connection(self):
        return type(self)(parent=self)

    def strikes(self, statement):
        fault = self.parent
        if fault.call not in statement:
            return False
        fault.seen += 1
        return fault.n <= fault.seen < fault.n + fault.times


class LosesRequest(Fault):
    """The connection is reset before the server has seen the statement."""

    def on_statement(self, statement, raw):
        if self.strikes(statement):
            self.parent.happened += 1
            return None
        return raw


class LosesReply(Fault):
    """The server has done and committed it; the connection is reset and nobody hears of it."""

    lost = None  # the number of the answer that must not come through

    def on_statement(self, statement, raw):
        if self.strikes(statement):
            self.lost = self.asked + 1
        return raw

    def sees_reply(self, kind, payload, raw):
        passed = super().sees_reply(kind, payload, raw)
        if self.lost is None or self.answered < self.lost - 1 or (kind == b"Z" and self.answered < self.lost):
            return passed
        if kind == b"Z":
            self.parent.happened += 1
            return None
        return b""


class DelaysRequest(Fault):
    """The statement reaches the server only when the test lets it go, long after its sender gave up."""

    def __init__(self, call=None, n=1, times=1, parent=None):
        super().__init__(call, n, times, parent)
        self.kept = None

    def on_statement(self, statement, raw):
        if self.kept is None and self.strikes(statement):
            self.kept = b""
            self.passes_end = False
            self.parent.happened += 1
        return raw

    def sees(self, direction, data):
        passed = super().sees(direction, data)
        if direction == UP and self.kept is not None:
            self.kept += passed
            return b""
        return passed

    def let_go(self, proxy):
        """Send what was kept back; how many connections had something."""

        async def send():
            late = [link for link in proxy.links if getattr(link.watcher, "kept", None)]
            for link in late:
                link.streams[UP][1].write(link.watcher.kept)
                link.watcher.kept = None
            return len(late)

        return proxy.call(send())


# ---- DynamoDB


class DynamoWatcher(Watcher):
    """Knows the actions that are asked for, over all connections. One request at a time is on each."""

    TARGET = b"DynamoDB_20120810."

    def __init__(self, parent=None):
        self.parent = parent or self
        if not parent:
            self.actions = []  # every one that was asked for, in order

    def of_connection(self):
        return type(self)(parent=self)

    def sees(self, direction, data):
        at = data.find(self.TARGET)
        if direction == UP and at >= 0:
            action = data[at + len(self.TARGET):].split(b"\r\n")[0].decode()
            self.parent.actions.append(action)
            self.on_action(action)
        return data

    def on_action(self, _action):
        pass


class LosesDynamoReply(DynamoWatcher):
    """The n-th of these actions is done; the connection is reset and nobody hears of it."""

    loses = False

    def __init__(self, action=None, n=1, parent=None):
        super().__init__(parent)
        if not parent:
            self.action, self.n = action, n
            self.seen = self.happened = 0

    def of_connection(self):
        return type(self)(parent=self)

    def on_action(self, action):
        if action == self.parent.action:
            self.parent.seen += 1
            self.loses = self.parent.seen == self.parent.n

    def sees(self, direction, data):
        if direction == DOWN and self.loses:
            self.parent.happened += 1
            return None
        return super().sees(direction, data)
