"""Fakes of the endpoints of AWS that the dynamodb store talks to, on a loopback port.

    with FakeAws() as aws:
        aws.keys["AKID"] = ("secret", None)       # who may sign, and with which session token
        aws.offset_s = 3600                       # the server's clock, against ours
        aws.script += [throttled, (200, {})]      # what the next calls are answered; after that 200 {}
        aws.calls                                 # what was asked: Call(action, body, key, outcome)

It recomputes every signature, and refuses as DynamoDB does: by words that repeat what was signed.
"""
import calendar
import collections
import hashlib
import hmac
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse
from email.utils import formatdate

Call = collections.namedtuple("Call", "action body key outcome connection")

SKEW_S = 300
DROP = "drop"    # read the call, and close the connection without an answer
STALL = "stall"  # read the call, and say nothing
CLOSE = "close"  # answer it, and close the connection without saying so


def failure(name, status=400, **more):
    return status, {"__type": f"com.amazonaws.dynamodb.v20120810#{name}", "message": f"fake {name}", **more}


throttled = failure("ProvisionedThroughputExceededException")
broken = failure("InternalServerError", 500)
condition = failure("ConditionalCheckFailedException")


# ---- signatures


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def canonical(method, path, headers, signed, body):
    """The canonical request, of a path without a query."""
    lines = [f"{name}:{' '.join(headers[name].split())}\n" for name in signed]
    return "\n".join([method, path, "", "".join(lines), ";".join(signed), sha256(body)])


def signature(secret, stamp, scope, request):
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = mac(key, part)
    return mac(key, "\n".join(["AWS4-HMAC-SHA256", stamp, scope, sha256(request.encode())])).hex()


AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})$")


class Refused(Exception):
    """With the name of DynamoDB's error, and its words."""


def check(aws, method, path, headers, body):
    """Who signed this; raises Refused."""
    match = AUTHORIZATION.match(headers.get("authorization", ""))
    if not match:
        raise Refused("MissingAuthenticationTokenException", "Request is missing Authentication Token")
    key, scope, signed, given = match.groups()
    signed = signed.split(";")
    secret, session = aws.keys.get(key, (None, None))
    if key in aws.expired:
        raise Refused("ExpiredTokenException", "The security token included in the request is expired")
    if not secret or headers.get("x-amz-security-token") != session:
        raise Refused("UnrecognizedClientException", f"The security token is invalid: {headers.get('x-amz-security-token')}")
    request = canonical(method, path, headers, signed, body)
    stamp = headers["x-amz-date"]
    needed = {"host", "x-amz-date", "x-amz-target"} | ({"x-amz-security-token"} if session else set())
    if not needed <= set(signed) or scope != f"{stamp[:8]}/{aws.region}/dynamodb/aws4_request":
        raise Refused("IncompleteSignatureException", f"{signed} {scope}")
    at = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    if abs(at - aws.now()) > SKEW_S:
        raise Refused("InvalidSignatureException", f"Signature expired: {stamp} is now earlier than ...")
    if not hmac.compare_digest(given, signature(secret, stamp, scope, request)):
        raise Refused("InvalidSignatureException", f"The Canonical String should have been '{request}'")
    return key


# ---- the endpoints


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one packet
    aws = None

    def setup(self):
        super().setup()
        with self.aws.lock:
            self.aws.connections += 1
            self.connection_number = self.aws.connections

    def finish(self):
        super().finish()
        self.connection.close()
        with self.aws.lock:
            self.aws.closed += 1

    def log_message(self, *_):
        pass

    def date_time_string(self, timestamp=None):
        return formatdate(self.aws.now(), usegmt=True)

    def answer(self, status, content, kind="application/x-amz-json-1.0"):
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def read(self):
        self.headers_low = {k.lower(): v for k, v in self.headers.items()}
        self.body = self.rfile.read(int(self.headers_low.get("content-length", 0)))
        with self.aws.lock:
            self.aws.requests.append((self.command, self.path, self.headers_low, self.body))

    def do_GET(self):
        self.read()
        for path, handle in self.aws.paths.items():
            if self.path.startswith(path):
                return self.answer(*handle(self))
        self.answer(200, "healthy: fake", "text/plain")

    do_PUT = do_GET

    def do_POST(self):
        self.read()
        target = self.headers_low.get("x-amz-target", "")
        if target.startswith("DynamoDB_20120810."):
            self.call(target.split(".")[1])
        elif self.aws.sts:
            self.answer(*self.aws.sts(dict(urllib.parse.parse_qsl(self.body.decode()))))
        else:
            self.answer(200, {})

    def call(self, action):
        try:
            key = check(self.aws, self.command, self.path, self.headers_low, self.body)
            with self.aws.lock:
                outcome = self.aws.script.pop(0) if self.aws.script else self.aws.otherwise
        except Refused as refused:
            key, outcome = None, (400, {"__type": f"com.amazon.coral.service#{refused.args[0]}", "message": refused.args[1]})
        with self.aws.lock:
            self.aws.calls.append(Call(action, json.loads(self.body), key, outcome, self.connection_number))
        if outcome == STALL:
            self.aws.ended.wait()
        self.close_connection |= outcome in (DROP, STALL, CLOSE)
        if outcome not in (DROP, STALL):
            self.answer(*((200, {}) if outcome == CLOSE else outcome))


class FakeAws:
    region = "eu-west-1"

    def __init__(self, host="127.0.0.1", port=0, certificate=None):
        self.keys, self.expired = {}, set()
        self.offset_s = 0
        self.script, self.otherwise = [], (200, {})
        self.calls, self.requests = [], []
        self.paths, self.sts = {}, None  # GET and PUT by the beginning of their path; POST of a form
        self.connections = self.closed = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        handler = type("HandlerOfThis", (Handler,), {"aws": self})
        self.server = http.server.ThreadingHTTPServer((host, port), handler)
        self.server.daemon_threads = True
        self.server.block_on_close = False
        self.url = f"http://{host}:{self.server.server_port}"
        if certificate:  # with its key in the same file
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = f"https://{host}:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def now(self):
        return time.time() + self.offset_s

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    # -- keys that are given out

    def expiry(self, lasts_s):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now() + lasts_s))

    def give_keys(self, key, lasts_s=3600):
        """New keys, as the endpoints of containers and instances write them."""
        self.keys[key] = (f"secret-of-{key}", f"session-of-{key}")
        return {"Code": "Success", "AccessKeyId": key, "SecretAccessKey": f"secret-of-{key}",
                "Token": f"session-of-{key}", "Expiration": self.expiry(lasts_s)}

    def give_keys_xml(self, key, lasts_s=3600):
        """And as STS does."""
        keys = self.give_keys(key, lasts_s)
        return f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
  <AssumeRoleWithWebIdentityResult><Audience>a</Audience><Credentials>
    <SessionToken>{keys["Token"]}</SessionToken><SecretAccessKey>{keys["SecretAccessKey"]}</SecretAccessKey>
    <Expiration>{keys["Expiration"]}</Expiration><AccessKeyId>{keys["AccessKeyId"]}</AccessKeyId>
  </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
