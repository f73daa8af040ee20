"""Globals that can run code, change files or use a network if a pickle names them."""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING

# All names in these modules and their submodules are dangerous.
_MODULES = frozenset({
    "IPython", "_ctypes", "_imp", "_pickle", "_posixsubprocess", "_pyrepl",
    "_socket", "_sqlite3", "_ssl", "_thread", "_winapi", "_xxinterpchannels",
    "_xxsubinterpreters", "aiohttp", "antigravity", "asyncio", "atexit", "bdb", "cProfile",
    "cffi", "cloudpickle", "code", "codeop", "commands", "ctypes", "dbm", "dill", "distutils",
    "doctest", "ensurepip", "fabric", "fileinput", "ftplib", "gc", "gdb", "git", "http",
    "httplib", "idlelib", "imaplib", "imp", "importlib", "ipykernel", "jsonpickle", "lib2to3",
    "mailbox", "mailcap", "marshal", "mmap", "modulefinder", "msvcrt", "multiprocessing",
    "nntplib", "nt", "ntpath", "numba", "optparse", "os", "paramiko", "pdb", "pexpect",
    "pickle", "pip", "pipes", "pkg_resources", "pkgutil", "plumbum", "popen2", "poplib",
    "posix", "posixpath", "profile", "pstats", "psutil", "pty", "ptyprocess", "py_compile",
    "pydoc", "requests", "resource", "rlcompleter", "runpy", "setuptools", "sh", "shelve",
    "shutil", "signal", "site", "smtpd", "smtplib", "socket", "socketserver", "sqlite3", "ssl",
    "subprocess", "sys", "sysconfig", "syslog", "telnetlib", "test", "this", "timeit", "trace",
    "turtle", "unittest", "urllib", "urllib2", "urllib3", "venv", "webbrowser", "winpty",
    "winreg", "wsgiref", "xmlrpc", "yaml", "zipapp", "zipimport",
})  # fmt: skip
# Modules that other modules import, so that they can be reached through them.
_REACHED = frozenset({
    "builtins", "ctypes", "importlib", "nt", "os", "posix", "shutil", "socket", "subprocess", "sys",
})  # fmt: skip
_BUILTINS = frozenset({
    "__build_class__", "__import__", "apply", "breakpoint", "compile", "delattr", "eval",
    "exec", "execfile", "exit", "filter", "getattr", "globals", "help", "input", "locals",
    "map", "open", "quit", "raw_input", "reload", "setattr", "vars",
})  # fmt: skip
# Other dangerous globals; names below them are dangerous too.
_PATHS = frozenset({
    "_io.FileIO", "_io.open", "_io.open_code", "_operator.attrgetter", "_operator.call",
    "_operator.methodcaller", "bz2.BZ2File", "bz2.open", "code.interact", "codecs.open",
    "collections.namedtuple", "concurrent.futures", "copyreg.add_extension",
    "copyreg.constructor", "copyreg.pickle", "dataclasses.make_dataclass", "functools.reduce",
    "gzip.GzipFile", "gzip.open", "inspect.getsource", "io.FileIO", "io.open", "io.open_code",
    "itertools.accumulate", "itertools.starmap", "joblib.load", "joblib.memory",
    "joblib.numpy_pickle.load", "logging.config", "lzma.LZMAFile", "lzma.open",
    "numpy.DataSource", "numpy.distutils", "numpy.f2py", "numpy.fromfile", "numpy.genfromtxt",
    "numpy.lib._npyio_impl.load", "numpy.lib.npyio.load", "numpy.load", "numpy.loadtxt",
    "numpy.memmap", "numpy.save", "numpy.testing", "operator.attrgetter", "operator.call",
    "operator.methodcaller", "pandas.eval", "pandas.io", "pandas.read_pickle", "tarfile.open",
    "tempfile.NamedTemporaryFile", "tempfile.TemporaryFile", "torch._dynamo", "torch._inductor",
    "torch.classes", "torch.compile", "torch.distributed.elastic", "torch.distributed.rpc",
    "torch.fx.graph_module", "torch.hub", "torch.jit", "torch.load", "torch.multiprocessing",
    "torch.ops", "torch.package", "torch.save", "torch.serialization.load",
    "torch.storage._load_from_bytes", "torch.utils._config_module", "torch.utils.bottleneck",
    "torch.utils.collect_env", "torch.utils.cpp_extension", "torch.utils.data.datapipes",
    "transformers.dynamic_module_utils", "types.CodeType", "types.FunctionType",
    "types.LambdaType", "types.MethodType", "types.new_class", "uuid._popen", "zipfile.ZipFile",
})  # fmt: skip


def is_dangerous(path: str) -> bool:
    """Whether a global can run code or do other harm; `path` is its dotted name, as `os.system`."""
    segments = path.split(".")
    # Python 3 maps names of Python 2 modules to their new names.
    first = IMPORT_MAPPING.get(segments[0], segments[0]).partition(".")[0]
    if first in _MODULES:
        return True
    # A name with dots can reach one module through another, such as `logging.os.system`.
    if not _REACHED.isdisjoint(segments[1:-1]):
        return True
    if any(each.startswith("__") and each.endswith("__") for each in segments[1:]):
        return True
    if first == "builtins":
        return segments[1] in _BUILTINS if len(segments) == 2 else True
    starts = (".".join(segments[:count]) for count in range(2, len(segments) + 1))
    return not _PATHS.isdisjoint(starts)
