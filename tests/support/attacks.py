"""Pickles that would run code in a program that executes them; the code is harmless."""

from __future__ import annotations

import marshal

from assembly import (
    BUILD,
    MARK,
    NONE,
    REDUCE,
    STOP,
    blob,
    call,
    get,
    integer,
    many,
    mapping,
    named,
    put,
    stacked,
    stream,
    text,
    whole,
)  # fmt: skip

SHELL = "exit 0"
CODE = "import sys; sys.attacked = True"
NOWHERE = "/nowhere/attacked"
_EMPTY = call("collections.OrderedDict")
_SYSTEM = call("os.system", SHELL)
_IMPORTED = call("builtins.__import__", "os")
_COMPILED = call("builtins.compile", CODE, "", "exec")
_NESTED = whole(_SYSTEM)
_PATH = call("builtins.getattr", _IMPORTED, "path")
_GOT = call("builtins.getattr", call("builtins.getattr", _PATH, "os"), "system")


def _attributes(**attributes: bytes) -> bytes:
    return mapping(*(text(name) + value for name, value in attributes.items()))


# Python raises an audit event for these, besides looking up a name.
LIVE: dict[str, bytes] = {
    # A call of a global by its name.
    "os.system": whole(_SYSTEM),
    "posix.system": whole(call("posix.system", SHELL)),
    "os.popen": whole(call("os.popen", SHELL)),
    "os.execv": whole(call("os.execv", "/bin/true", many(text("true")))),
    "os.posix_spawn": whole(call("os.posix_spawn", "/bin/true", many(text("true")), mapping())),
    "os.spawnlp": whole(call("os.spawnlp", integer(0), "true", "true")),
    "os.fork": whole(call("os.fork")),
    "pty.spawn": whole(call("pty.spawn", "true")),
    "subprocess.Popen": whole(call("subprocess.Popen", many(text("true")))),
    "subprocess.check_output": whole(call("subprocess.check_output", many(text("true")))),
    "subprocess.getoutput": whole(call("subprocess.getoutput", SHELL)),
    "eval": whole(call("builtins.eval", "__import__('os').system('exit 0')")),
    "exec": whole(call("builtins.exec", CODE)),
    "compile": whole(_COMPILED),
    "import": whole(call("builtins.__import__", "this")),
    "import_module": whole(call("importlib.import_module", "this")),
    "open": whole(call("builtins.open", NOWHERE, "w")),
    "io.open": whole(call("_io.FileIO", NOWHERE, "w")),
    "os.open": whole(call("os.open", NOWHERE, integer(577))),
    "remove": whole(call("os.remove", NOWHERE)),
    "rename": whole(call("os.rename", NOWHERE, NOWHERE)),
    "mkdir": whole(call("os.mkdir", NOWHERE)),
    "rmtree": whole(call("shutil.rmtree", NOWHERE)),
    "copyfile": whole(call("shutil.copyfile", NOWHERE, NOWHERE)),
    "socket": whole(call("_socket.socket")),
    "connection": whole(call("socket.create_connection", many(text("127.0.0.1"), integer(9)))),
    "urlopen": whole(call("urllib.request.urlopen", "http://127.0.0.1:9/")),
    "ctypes": whole(call("ctypes.CDLL", NONE)),
    "marshal": whole(call("marshal.loads", blob(marshal.dumps([1])))),
    "a function of code": whole(
        call(call("types.FunctionType", call("marshal.loads", blob(marshal.dumps(
            compile(CODE, "", "exec")))), mapping()))
    ),
    # A call through another object.
    "runpy": whole(call("runpy._run_code", CODE, mapping())),
    "timeit": whole(call("timeit.timeit", CODE)),
    "profile": whole(call("cProfile.run", CODE)),
    "getattr": whole(call(call("builtins.getattr", _IMPORTED, "system"), SHELL)),
    "getattr of getattr": whole(call(_GOT, SHELL)),
    "attrgetter": whole(call(call(call("operator.attrgetter", "system"), _IMPORTED), SHELL)),
    "methodcaller": whole(call(call("operator.methodcaller", "system", SHELL), _IMPORTED)),
    "a name with dots": whole(
        stacked("os", "path.os.system") + many(text(SHELL)) + REDUCE, protocol=4
    ),
    "a partial": whole(call(call("functools.partial", named("os.system"), SHELL))),
    "a deque of a map": whole(
        call("collections.deque", call("builtins.map", named("os.system"), many(text(SHELL))))
    ),
    "reduce": whole(call("functools.reduce", named("os.system"), many(), text(SHELL))
                    + b"0" + _SYSTEM),
    "pydoc": whole(call("pydoc.pipepager", "", SHELL)),
    "locate": whole(call(call("pydoc.locate", "os.system"), SHELL)),
    "a config of loggers": whole(call("logging.config.dictConfig", mapping(
        text("version") + integer(1),
        text("handlers") + mapping(text("h") + _attributes(
            **{"()": text("os.system"), "command": text(SHELL)})),
    ))),
    # Opcodes that call without REDUCE.
    "INST": b"(S'exit 0'\nios\nsystem\n.",
    "OBJ": whole(MARK + named("os.system") + text(SHELL) + b"o"),
    "OBJ of a class": whole(MARK + named("subprocess.Popen") + many(text("true")) + b"o"),
    "INST of a class": b"((S'true'\ntisubprocess\nPopen\n.",
    "NEWOBJ": whole(named("_io.FileIO") + many() + b"\x81" + _SYSTEM),
    "NEWOBJ_EX": whole(
        named("ctypes.CDLL") + many() + mapping() + b"\x92" + _SYSTEM, protocol=4
    ),
    "__setstate__": whole(
        call("functools.partial", named("builtins.print")) + put(0)
        + many(named("os.system"), many(text(SHELL)), mapping(), NONE) + BUILD
        + get(0) + many() + REDUCE
    ),
    "an append of its own": whole(
        call("argparse.Namespace")
        + _attributes(append=named("os.system")) + BUILD + text(SHELL) + b"a"
    ),
    "an extend of its own": whole(
        call("argparse.Namespace")
        + _attributes(extend=call("operator.methodcaller", "system", SHELL)) + BUILD
        + MARK + _SYSTEM + b"e"
    ),
    "SETITEM into the environment": whole(
        named("os.environ") + text("ATTACKED") + text("yes") + b"s"
    ),
    "SETITEMS into the environment": whole(
        named("os.environ") + MARK + text("ATTACKED") + text("yes") + b"u"
    ),
    "the extension registry": whole(
        call("copyreg.add_extension", "os", "system", integer(240)) + b"0\x82\xf0"
        + many(text(SHELL)) + REDUCE
    ),
    "the extension registry by 4 bytes": whole(
        call("copyreg.add_extension", "posix", "system", integer(241)) + b"0\x84\xf1\0\0\0"
        + many(text(SHELL)) + REDUCE
    ),
    # Pickles in pickles.
    "a nested pickle": whole(call("pickle.loads", blob(_NESTED))),
    "a nested pickle of C": whole(call("_pickle.loads", blob(_NESTED))),
    "twice nested": whole(call("pickle.loads", blob(whole(call("pickle.loads", blob(_NESTED)))))),
    "an Unpickler": whole(
        call(call("builtins.getattr", call("pickle.Unpickler", call("io.BytesIO", blob(_NESTED))),
                  "load"))
    ),
    # Hidden attacks.
    "the result is dropped": whole(_SYSTEM + b"0" + _EMPTY),
    "the result is a key": whole(mapping(_SYSTEM + NONE)),
    "kept in the memo": whole(_SYSTEM + put(9) + b"0" + mapping(text("a") + get(9))),
    "behind a mark": whole(MARK + _SYSTEM + b"1" + _EMPTY),
    "Python 2's name": whole(call("__builtin__.eval", "__import__('os').system('exit 0')")),
    "it breaks afterwards": whole(_SYSTEM + b"\xff"),
    "it ends nowhere": whole(_SYSTEM)[:-1],
    "protocol 0": b"cos\nsystem\n(S'exit 0'\ntR.",
    "protocol 0 with escapes": b"cos\nsystem\n(S'\\x65xit\\0400'\ntR.",
    "names from the memo": whole(
        text("system") + put(7) + b"0" + text("os") + get(7) + b"\x93"
        + many(text(SHELL)) + REDUCE, protocol=4
    ),
    "a persistent id of a call": whole(_SYSTEM + b"Q"),
    "a buffer": whole(_SYSTEM + b"\x97", protocol=5),
    "what it calls is a call": whole(call(call("builtins.eval", "__import__('os').system"), SHELL)),
}  # fmt: skip

# Python does less for these, or needs another library.
OTHERS: dict[str, bytes] = {
    "frames that lie": whole(b"\x95" + b"\xff" * 7 + b"\x0f" + _SYSTEM, protocol=4),
    "a poisoned module": whole(named("os.path") + _attributes(attacked=NONE) + BUILD),
    "a poisoned class": whole(
        named("collections.OrderedDict") + many(NONE, _attributes(attacked=NONE)) + BUILD
    ),
    "a poisoned list of modules": whole(named("sys.modules") + text("attacked") + NONE + b"s"),
    "a poisoned path": whole(named("sys.path") + text(NOWHERE) + b"a"),
    "another __class__": whole(
        call("argparse.Namespace") + _attributes(
            __class__=named("subprocess.Popen"), __dict__=mapping(), __del__=named("os._exit"),
        ) + BUILD
    ),
    "a factory": whole(call("collections.defaultdict", named("os._exit"))),
    "torch's bytes": whole(call("torch.storage._load_from_bytes", blob(_NESTED))),
    "torch's types": whole(call(
        "torch._tensor._rebuild_from_type_v2", named("os.system"), named("torch.Tensor"),
        many(text(SHELL)), NONE)),
    "torch's types of types": whole(call(
        "torch._tensor._rebuild_from_type_v2", named("torch._tensor._rebuild_from_type_v2"), NONE,
        many(named("os.system"), NONE, many(text(SHELL)), NONE), NONE)),
    "torch's parameter of a call": whole(
        call("torch._utils._rebuild_parameter", _SYSTEM, b"\x88", _EMPTY)
    ),
    "torch's hooks": whole(call(
        "torch._utils._rebuild_tensor_v2", NONE, integer(0), many(), many(), b"\x89", _SYSTEM)),
    "torch's wrapper": whole(call("torch.jit.unsupported_tensor_ops.execWrapper", CODE)),
    "torch's environment": whole(call("torch.utils.collect_env.run", SHELL)),
    "NumPy's strings": whole(call("numpy.testing._private.utils.runstring", CODE, mapping())),
    "NumPy's load": whole(call("numpy.load", NOWHERE)),
    "NumPy's array of a class": whole(
        call("numpy.core.multiarray._reconstruct", named("subprocess.Popen"), many(integer(0)),
             blob(b"b")) + many(integer(1), many(), named("os.system"), b"\x89", _SYSTEM) + BUILD
    ),
    "NumPy's dtype of a call": whole(call("numpy.dtype", _SYSTEM, b"\x89", b"\x88")),
    "an encoding": whole(call("_codecs.encode", _SYSTEM, "rot13")),
    "a path of a call": whole(call("pathlib.PosixPath", "..", "..", NOWHERE)),
    "a call of a call of a call": whole(call(call(call("a.b")))),
    "a name with line feeds": whole(
        stacked("os\nsystem", "a\nb") + many(text(SHELL)) + REDUCE, protocol=4
    ),
    "a name with control codes": whole(
        call(stacked("\x1b[2J\x1b]0;attacked\x07", "\x1b[31m\r\u202ea")), protocol=4
    ),
    "a name of surrogates": whole(call(stacked("\ud800", "\udfff")), protocol=4),
    "a name of nothing": whole(call(stacked("", "")), protocol=4),
    "a name of a number": whole(text("os") + integer(1) + b"\x93", protocol=4),
    "a name of a call": whole(text("os") + _SYSTEM + b"\x93", protocol=4),
    "a name longer than any": whole(call(stacked("a" * 100_000, "b" * 100_000)), protocol=4),
    "an unknown extension": whole(b"\x82\1" + many(text(SHELL)) + REDUCE),
    "an extension below 0": whole(b"\x84\xff\xff\xff\xff" + many(text(SHELL)) + REDUCE),
    "a persistent id": whole(text("../../etc/passwd") + b"Q"),
    "a persistent id in a line": b"(P../../etc/passwd\n.",
    "a persistent id that looks like a storage": whole(text(
        "('storage', <class 'os.system'>, '0', 'cpu', 4)") + b"Q"),
    "a storage of another class": whole(many(
        text("storage"), named("os.system"), text("0"), text("cpu"), integer(4)) + b"Q"),
    "a module by its id": whole(many(
        text("module"), named("os.system"), text(NOWHERE), text(CODE)) + b"Q"),
    "no arguments": whole(named("os.system") + text(SHELL) + REDUCE),
    "arguments that are a list": whole(named("os.system") + b"(" + text(SHELL) + b"lR"),
    "nothing on the stack": whole(REDUCE),
    "nothing below the mark": whole(b"(" + REDUCE),
    "no mark": whole(text("a") + b"t"),
    "only the end": whole(),
    "a state for nothing": whole(NONE + _attributes(a=NONE) + BUILD),
    "an object inside itself": whole(
        call("a.b") + put(0) + get(0) + BUILD + get(0) + b"a" + text("a") + get(0) + b"s"
    ),
    "an array inside itself": whole(
        call("numpy.core.multiarray._reconstruct", NONE) + put(0)
        + many(integer(1), many(), NONE, b"\x89", get(0)) + BUILD
    ),
    "a list inside itself": whole(b"]" + put(0) + get(0) + b"a"),
    "a dict inside itself": whole(b"}" + put(0) + text("a") + get(0) + b"s"),
    "a set of itself": whole(b"\x8f" + put(0) + b"(" + get(0) + b"\x90", protocol=4),
}  # fmt: skip

ATTACKS = {**LIVE, **OTHERS}
# Several pickles, or pickles at other places.
SEVERAL = {
    "a second pickle": whole(_EMPTY) + _NESTED,
    "a pickle before the stream's object": stream(_NESTED + whole(_EMPTY)),
    "the keys of a stream": stream(whole(_EMPTY), keys=_NESTED),
    "nothing but an end": STOP,
}
