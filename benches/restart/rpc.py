"""A client for a master's RPC port, for measuring: few methods, prepared requests, many requests in flight. Also a paper node (a segment
without memory), and a listener for the nodes' pings.

Method IDs, type hashes and type literals are those of release 0.3.13 (the same as in benches/peers/mrpcload.c).
"""
import ctypes, os, socket, struct, threading, time

METHODS = {  # name: (function ID, type hash and literal)
    "ServiceReady": ("56bb817b", ""),
    "Ping": ("e5dac2d6", "e1836d3c04fd04048989ff00"),
    "ExistKey": ("095f3889", "d91ef97c04fd800c800cff00"),
    "BatchExistKey": ("b0a69fb8", "638df70004fd84800c800cff00"),
    "GetReplicaList": ("74f17e1f", "d91ef97c04fd800c800cff00"),
    "PutStart": ("c19aea65", "0fbd85e304fdfd04048989ff800c04fd0404040685040b84800c800c84800c0b06800c8584800cff800cff00"),
    "PutEnd": ("99208b8e", "239281d104fdfd04048989fffd800c8504ff01800cff00"),
    "BatchPutStart": ("2218be56", "a5c0705804fdfd04048989ff84800c8404fd0404040685040b84800c800c84800c0b06800c8584800cff800cff00"),
    "BatchPutEnd": ("ab20e080", "c9a77ef504fdfd04048989ff84fd800c8504ff01800cff00"),
    "Remove": ("7497b0f1", "ef9fe81804fd800c0b800cff00"),
    "MountSegment": ("bbc47e3e", "af0df79e04fdfdfd04048989ff800c0404800c800c800cfffd04048989ffff00"),
    "ReMountSegment": ("723b050b", "896bc6c604fd84fdfd04048989ff800c0404800c800c800cfffd04048989ffff00"),
}
PING_OK = 1


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return bytes([len(s)]) + s


TENANT = text("default")


def request(method, arguments=b"", sequence=1):
    function, literal = (bytes.fromhex(x) for x in METHODS[method])
    body = literal + arguments
    return struct.pack("<BBBBI4sII", 21, 0, 0, 0, sequence, function, len(body), 0) + body


def keys(names):
    return bytes([len(names)]) + b"".join(map(text, names))


def batch_exist(names):
    """`names` has at most 255 keys"""
    return request("BatchExistKey", keys(names) + TENANT)


def get_replica_list(name):
    return request("GetReplicaList", text(name) + TENANT)


class RpcError(Exception):
    pass


class Rpc:
    """one connection"""

    def __init__(self, port, timeout=30):
        self.s = socket.create_connection(("127.0.0.1", port), timeout)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.s.settimeout(timeout)
        self.buffer = b""

    def close(self):
        self.s.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def frame(self):
        """the next response: the bytes behind its type literal"""
        while True:
            if len(self.buffer) >= 16:
                error, length = self.buffer[2], struct.unpack_from("<I", self.buffer, 8)[0]
                if len(self.buffer) >= 16 + length:
                    body, self.buffer = self.buffer[16:16 + length], self.buffer[16 + length:]
                    if error:
                        raise RpcError(f"frame error {error}: {body[:100]!r}")
                    return body[body.index(0, 5) + 1:]
            more = self.s.recv(1 << 18)
            if not more:
                raise ConnectionError("closed by the master")
            self.buffer += more

    def call(self, frame):
        self.s.sendall(frame)
        return self.frame()

    def pipeline(self, frames, depth=32):
        """sends prepared requests, at most `depth` in flight, and yields the responses"""
        sent = received = 0
        while received < len(frames):
            if sent < len(frames) and sent - received <= depth // 2:
                more = frames[sent:sent + depth // 2]
                self.s.sendall(b"".join(more))
                sent += len(more)
            yield self.frame()
            received += 1


def ready(port):
    """whether ServiceReady is answered"""
    try:
        with Rpc(port, 5) as c:
            return ok(c.call(request("ServiceReady")))
    except (OSError, ValueError):
        return False


def ok(body):
    return bool(body) and body[0] == 1


def error_code(body):
    return struct.unpack_from("<i", body, 1)[0] if len(body) >= 5 and body[0] == 0 else None


def exist_flags(body):
    """the flags in a response to BatchExistKey; None for an error"""
    out, at = [], 1
    for _ in range(body[0]):
        if body[at]:
            out.append(body[at + 1] == 1)
            at += 2
        else:
            out.append(None)
            at += 5
    return out


def batch_ok(body):
    """the outcomes in a response to BatchPutEnd: None, or the error code"""
    out, at = [], 1
    for _ in range(body[0]):
        if body[at]:
            out.append(None)
            at += 1
        else:
            out.append(struct.unpack_from("<i", body, at + 1)[0])
            at += 5
    return out


def config(pin=False, preferred=""):
    """a ReplicateConfig with one replica"""
    return struct.pack("<QQQBBB", 1, 0, 0, 0, 0, pin) + b"\0" + text(preferred) + b"\0\0\0\0\0"


class PaperNode:
    """A client with one segment whose memory does not exist. The master cannot tell. Its objects cannot be read, only looked up."""

    def __init__(self, port, name, size, base=0x100000000, client=None):
        self.port, self.name, self.size, self.base = port, name, size, base
        self.client = client or os.urandom(16)
        self.segment_id = os.urandom(16)
        self.rpc = None

    def connect(self):
        if self.rpc:
            self.rpc.close()
        self.rpc = Rpc(self.port)
        return self.rpc

    def segment(self):
        return self.segment_id + text(self.name) + struct.pack("<QQ", self.base, self.size) + text(self.name) + text("tcp") + text("")

    def ping(self):
        """the client status in the response"""
        body = self.rpc.call(request("Ping", self.client))
        return struct.unpack_from("<i", body, 9)[0] if ok(body) else None

    def mount(self):
        """as the wheel's client does it: mount, ping, remount"""
        first = self.rpc.call(request("MountSegment", self.segment() + self.client))
        self.ping()
        second = self.rpc.call(request("ReMountSegment", b"\x01" + self.segment() + self.client))
        if not ok(first) or not ok(second) or self.ping() != PING_OK:
            raise RpcError(f"{self.name}: cannot mount: {error_code(first)}, {error_code(second)}")

    def put(self, name, size=4096, pin=False):
        """PutStart and PutEnd; the error code, or None"""
        start = self.rpc.call(request("PutStart", self.client + text(name) + struct.pack("<Q", size) + config(pin, self.name) + TENANT))
        if not ok(start):
            return error_code(start)
        end = self.rpc.call(request("PutEnd", self.client + text(name) + b"\0" + struct.pack("<i", 4) + TENANT))
        return None if ok(end) else error_code(end)

    def batch_put(self, names, size=4096, pin=False):
        """the error code of each key, or None"""
        lengths = bytes([len(names)]) + struct.pack("<Q", size) * len(names)
        self.rpc.call(request("BatchPutStart", self.client + keys(names) + lengths + config(pin, self.name) + TENANT))
        objects = bytes([len(names)]) + b"".join(text(n) + b"\0" for n in names)
        return batch_ok(self.rpc.call(request("BatchPutEnd", self.client + objects + struct.pack("<i", 4) + TENANT)))

    def remove(self, name, force=False):
        body = self.rpc.call(request("Remove", text(name) + bytes([force]) + TENANT))
        return None if ok(body) else error_code(body)

    def replicas(self, names):
        """The replicas of each key as bytes, without the lease; None if the key is not found."""
        out = []
        for body in self.rpc.pipeline([get_replica_list(n) for n in names]):
            # expected<{replicas, lease_ttl_ms u64, checksum}>: the last 9 bytes are the lease and an absent checksum
            out.append(body[1:-9] if ok(body) else None)
        return out


class PingListener:
    """Records when each client's Pings are sent to a port, by listening on the loopback interface (root only). Other programs are not
    disturbed: the kernel passes on only frames with the method ID of Ping."""

    def __init__(self, port):
        self.seen, self.error = {}, None
        try:
            self.s = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        except OSError as error:
            self.s, self.error = None, str(error)
            return
        ping = struct.unpack(">I", bytes.fromhex(METHODS["Ping"][0]))[0]
        program = [(0x30, 0, 0, 9), (0x15, 0, 11, 6),       # protocol is TCP
                   (0xb1, 0, 0, 0), (0x48, 0, 0, 2),        # x = length of the IP header; destination port
                   (0x15, 0, 8, port), (0x50, 0, 0, 12),    # offset of the TCP payload
                   (0x54, 0, 0, 0xf0), (0x74, 0, 0, 2),
                   (0x0c, 0, 0, 0), (0x07, 0, 0, 0),        # x = begin of the payload
                   (0x40, 0, 0, 8), (0x15, 0, 1, ping),     # the method's ID
                   (0x06, 0, 0, 0xffff), (0x06, 0, 0, 0)]
        code = b"".join(struct.pack("HBBI", *i) for i in program)
        self.code = ctypes.create_string_buffer(code)
        self.s.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", len(program), ctypes.addressof(self.code)))
        self.s.bind(("lo", 0))
        self.s.settimeout(0.2)
        self.running = True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        literal = len(bytes.fromhex(METHODS["Ping"][1]))
        while self.running:
            try:
                packet, address = self.s.recvfrom(65536)
            except TimeoutError:
                continue
            now = time.monotonic()
            if address[2] == socket.PACKET_OUTGOING:
                continue  # loopback shows each packet twice
            head = (packet[0] & 15) * 4
            begin = head + (packet[head + 12] >> 4) * 4
            client = packet[begin + 20 + literal:begin + 36 + literal]
            self.seen.setdefault(client, []).append(now)

    def first(self, clients, since):
        """when the first Ping of one of these clients arrived, not before `since`; None if there was none"""
        return min((t for c in clients for t in self.seen.get(c, ()) if t >= since), default=None)

    def clear(self):
        self.seen = {}

    def stop(self):
        if self.s:
            self.running = False
            self.thread.join()
            self.s.close()
