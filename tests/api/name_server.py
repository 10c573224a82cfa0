"""A name server on this machine (RFC 1035, over UDP), and the question that a resolver asks it."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from ipaddress import ip_address
from itertools import count
from socketserver import BaseRequestHandler, ThreadingUDPServer

HEADER = struct.Struct(">6H")
TYPES = {4: 1, 6: 28}  # A and AAAA, by the version of the address
ASKED, FOUND, UNKNOWN = 0x0100, 0x8180, 0x8183
numbers = count(1)


class NameServer:
    """Answers with a name's lists of addresses in turn, and again with the last; ``asked`` are the names, lookup by lookup."""

    def __init__(self, names):
        self.names = {name: [list(addresses) for addresses in turns] for name, turns in names.items()}
        self.asked, self._now, self.address = [], {}, None

    @contextmanager
    def serving(self):
        server = self

        class Handler(BaseRequestHandler):
            def handle(self):
                question, udp = self.request
                udp.sendto(server._answer(question), self.client_address)

        with ThreadingUDPServer(("127.0.0.1", 0), Handler) as udp:
            self.address = udp.server_address
            thread = threading.Thread(target=udp.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                udp.shutdown()
                thread.join()

    def look_up(self, host):
        """As a resolver does: both kinds of addresses. Raises socket.gaierror where there are none."""
        found = [address for kind in TYPES.values() for address in self._ask(host, kind)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    def _ask(self, host, kind):
        name = b"".join(bytes([len(label)]) + label.encode() for label in host.rstrip(".").split("."))
        number = next(numbers) % 65_536
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.settimeout(20)
            udp.sendto(
                HEADER.pack(number, ASKED, 1, 0, 0, 0) + name + b"\0" + struct.pack(">2H", kind, 1), self.address
            )
            answer = udp.recv(4_096)
        got, _, _, num_answers, _, _ = HEADER.unpack_from(answer)
        assert got == number
        place, found = HEADER.size + len(name) + 5, []
        for _ in range(num_answers):
            (size,) = struct.unpack_from(">H", answer, place + 10)
            found.append(str(ip_address(answer[place + 12 : place + 12 + size])))
            place += 12 + size
        return found

    def _answer(self, question):
        number, *_ = HEADER.unpack_from(question)
        labels, place = [], HEADER.size
        while question[place]:
            labels.append(question[place + 1 : place + 1 + question[place]].decode())
            place += 1 + question[place]
        name = ".".join(labels).lower()
        (kind,) = struct.unpack_from(">H", question, place + 1)
        asked = question[HEADER.size : place + 5]
        if name not in self.names:
            return HEADER.pack(number, UNKNOWN, 1, 0, 0, 0) + asked
        if kind == TYPES[4]:  # a lookup begins with this question
            turns = self.names[name]
            self._now[name] = turns.pop(0) if len(turns) > 1 else turns[0]
            self.asked.append(name)
        records = b""
        addresses = [one for one in map(ip_address, self._now[name]) if TYPES[one.version] == kind]
        for one in addresses:  # a pointer to the name in the question, class IN, to be kept for no time
            records += struct.pack(">3HIH", 0xC00C, kind, 1, 0, len(one.packed)) + one.packed
        return HEADER.pack(number, FOUND, 1, len(addresses), 0, 0) + asked + records
