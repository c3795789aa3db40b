"""Gives a worker another engine, or parts of a GPU, or makes it a fork of a loaded process.

Python runs this at its start if the folder is on PYTHONPATH. It loads no module until one is
needed, as Python's start does not: what is loaded is never looked for, so that a file which hides it
would not be noticed.
"""

import os
import sys


def prepare() -> None:
    """Does what the variables ask for."""
    if "ENGINE_STAND_IN" in os.environ:
        _stand_in(os.environ["ENGINE_STAND_IN"])
    if "GPUBALANCE_BENCH_PARTS" in os.environ:
        from tests.support.gpu import parts

        parts.install()


def _stand_in(engine: str) -> None:
    instead = {
        "gpubalance.engine.session": engine,
        "gpubalance.engine.pipeline.session": engine.rpartition("/")[0]
        + "/layers_session.py",
    }

    class _Finder:
        @staticmethod
        def find_spec(name, *_):  # type: ignore[no-untyped-def]
            if name not in instead:
                return None
            from importlib.util import spec_from_file_location

            return spec_from_file_location(name, instead[name])

    sys.meta_path.insert(0, _Finder)


_PASSED_ON = (1, 2, 10, 12, 15)  # HUP, INT, USR1, USR2, TERM


def _be_forked(address: str) -> None:
    """Lets tests/support/fork_server.py do what this process shall, and ends as that does."""
    # Python's start has them; signal and socket take a third of what a fork saves.
    import _signal  # type: ignore[import-not-found]
    import _socket
    import marshal

    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        server.connect(address)
    except OSError:
        return  # a test's process is gone
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    names = os.listdir(listing)  # noqa: PTH208
    os.close(listing)
    files = sorted(map(int, names))
    files = [file for file in files if _is_inherited(file)]
    words = sys.orig_argv[1:]
    folder = os.getcwd()  # noqa: PTH109
    asked = marshal.dumps((words, dict(os.environ), folder, sys.path, files))
    rights = b"".join(file.to_bytes(4, sys.byteorder) for file in files)
    for number in _PASSED_ON:
        _signal.signal(number, lambda number, _: server.send(bytes([number])))
    server.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 1 << 20)
    server.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    for file in files:
        os.close(file)
    told = server.recv(100)
    code = marshal.loads(told) if told else 1  # noqa: S302
    if code < 0:
        if -code in _PASSED_ON:
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _is_inherited(file: int) -> bool:
    try:
        return os.get_inheritable(file)
    except OSError:
        return False


_program = sys.orig_argv[1] if len(sys.orig_argv) > 1 else ""
_loaded = os.environ.get("FORKED_FROM")
_is_file = _program.endswith(".py") and os.path.isfile(_program)  # noqa: PTH113
if _loaded and _is_file and not hasattr(sys, "is_fork_server"):
    _be_forked(_loaded)
prepare()
