"""What a pickle of PyTorch says, found out without running it.

A pickle is a program that may call anything. Here `pickletools` of the
standard library takes it apart, and the few opcodes that a state dict needs
are followed: they make dicts, lists, tuples, numbers, texts, and descriptions
of tensors. Nothing is imported and nothing called; a name that no state dict
needs is refused. `pickle.Unpickler` with a `find_class` of one's own is not
enough: five bytes make its memo ask for 64 GB, and a tuple that nests deeply, used
as a key, overflows the stack of the process.
"""

import pickletools
from collections.abc import Callable
from io import BytesIO, RawIOBase
from typing import IO, Any, Final, NamedTuple, TypeAlias, cast, final

from records.burnpack.wire import Flaw
from records.shown import said, shown
from records.storage import Limits

from .dtypes import DTYPES, STORAGES

Value: TypeAlias = Any  # a dict, list, tuple, text, number, truth value, None, bytes, Name, StorageId or TensorView
Stream: TypeAlias = BytesIO | RawIOBase

_OPCODES_PER_TENSOR: Final = 60  # in what PyTorch writes about 25, with an optimizer's state 40
_CONTAINER: Final = "collections.OrderedDict"
_PARAMETERS: Final = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_TENSORS: Final = {  # function -> how many arguments it takes, at least and at most
    "torch._utils._rebuild_tensor": (4, 4),
    "torch._utils._rebuild_tensor_v2": (6, 7),
    "torch._utils._rebuild_tensor_v3": (7, 8),  # of dtypes without a storage type of their own
}
_SIZE: Final = "torch.Size"
_DEVICE: Final = "torch.device"
_CALLED: Final = frozenset({_CONTAINER, _SIZE, _DEVICE, *_PARAMETERS, *_TENSORS})
_KNOWN: Final = _CALLED | DTYPES.keys() | STORAGES.keys()


class Name(NamedTuple):
    """A name that the pickle asks for; it stands for nothing but itself."""

    text: str


class StorageId(NamedTuple):
    """Memory that tensors lie in: its type's name, its key, and its number of elements (untyped: of bytes)."""

    type: str
    key: str
    length: int


class TensorView(NamedTuple):
    """A tensor: where in a storage it lies, in elements. `dtype` is a name of PyTorch, None if the storage tells it."""

    storage: StorageId
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str | None


class _Mark(NamedTuple):
    """Where a MARK stands on the stack."""


def read_pickle(stream: Stream, limits: Limits, start: int = 0) -> Value:
    """The value of the pickle that a stream is at; the stream is behind it afterwards.

    Args:
        stream: one whose `read` makes no more room than there are bytes.
        limits: what is taken at most.
        start: the offset of the stream's beginning in the file, for messages.

    Raises:
        Flaw: it is none, asks for a name that no state dict needs, or goes beyond the limits; with the offset.
    """
    machine = _Machine()
    most = limits.max_tensors * _OPCODES_PER_TENSOR
    position = start + stream.tell()
    try:
        for number, (opcode, argument, at) in enumerate(pickletools.genops(cast("IO[bytes]", stream))):
            position = start + (at or 0)
            if number >= most:
                raise Flaw(f"more than {most} opcodes; give max_tensors to raise the limit")
            if opcode.name == "STOP":
                return machine.result()
            machine.follow(opcode.name, argument)
    except Flaw as flaw:
        raise Flaw(f"offset {position}: {flaw}") from None
    except (ValueError, OverflowError) as error:  # of pickletools: no opcode, no text, no number, or the end
        raise Flaw(f"offset {position}: damaged pickle: {said(error)}") from None
    raise Flaw(f"offset {position}: the pickle does not end")


@final
class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Value] = []
        self._memo: dict[int, Value] = {}

    def result(self) -> Value:
        if len(self._stack) != 1 or isinstance(self._stack[0], _Mark):
            raise Flaw(f"the pickle ends with {len(self._stack)} values instead of 1")
        return self._stack[0]

    def follow(self, opcode: str, argument: Any) -> None:
        """One opcode."""
        if opcode in _LITERALS:
            self._stack.append(argument)
        elif opcode in _CONSTANTS:
            self._stack.append(_CONSTANTS[opcode]())
        elif opcode in _TUPLES:
            self._stack.append(tuple(self._popped(_TUPLES[opcode])))
        elif opcode in _PUTS:
            self._memo[argument] = self._top()
        elif opcode in _GETS:
            if argument not in self._memo:
                raise Flaw(f"the pickle asks for {argument}, which it has not put aside")
            self._stack.append(self._memo[argument])
        elif opcode in _STEPS:
            _STEPS[opcode](self, argument)
        elif opcode not in _IGNORED:
            raise Flaw(f"the pickle has the opcode {opcode}, which no state dict needs")

    def _top(self) -> Value:
        if not self._stack or isinstance(self._stack[-1], _Mark):
            raise Flaw("the pickle takes a value where there is none")
        return self._stack[-1]

    def _pop(self) -> Value:
        self._top()
        return self._stack.pop()

    def _popped(self, count: int) -> list[Value]:
        return [self._pop() for _ in range(count)][::-1]

    def _popped_to_mark(self) -> list[Value]:
        for at in range(len(self._stack) - 1, -1, -1):
            if isinstance(self._stack[at], _Mark):
                values = self._stack[at + 1 :]
                del self._stack[at:]
                return values
        raise Flaw("the pickle takes values up to a mark where there is none")

    def mark(self, _: Any) -> None:
        self._stack.append(_Mark())

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._top()

    def tuple_of_marked(self, _: Any) -> None:
        self._stack.append(tuple(self._popped_to_mark()))

    def list_of_marked(self, _: Any) -> None:
        self._stack.append(self._popped_to_mark())

    def dict_of_marked(self, _: Any) -> None:
        values = self._popped_to_mark()
        made: dict[Any, Value] = {}
        self._stack.append(made)
        _put(made, values)

    def append(self, _: Any) -> None:
        value = self._pop()
        self._list_on_top().append(value)

    def append_marked(self, _: Any) -> None:
        values = self._popped_to_mark()
        self._list_on_top().extend(values)

    def set_item(self, _: Any) -> None:
        pair = self._popped(2)
        _put(self._dict_on_top(), pair)

    def set_marked(self, _: Any) -> None:
        values = self._popped_to_mark()
        _put(self._dict_on_top(), values)

    def _list_on_top(self) -> list[Value]:
        top = self._top()
        if not isinstance(top, list):
            raise Flaw("the pickle appends to something else than a list")
        return top

    def _dict_on_top(self) -> dict[Any, Value]:
        top = self._top()
        if not isinstance(top, dict):
            raise Flaw("the pickle puts items into something else than a dict")
        return top

    def name(self, argument: str) -> None:
        self._stack.append(_allowed(argument.replace(" ", ".", 1)))

    def name_on_stack(self, _: Any) -> None:
        module, name = self._popped(2)
        self._stack.append(_allowed(f"{module}.{name}"))

    def call(self, _: Any) -> None:
        called, arguments = self._popped(2)
        if not isinstance(called, Name) or not isinstance(arguments, tuple):
            raise Flaw("the pickle calls something that is no name")
        self._stack.append(_called(called.text, arguments))

    def build(self, _: Any) -> None:
        """Attributes of a state dict, which are of no use here: its modules' versions."""
        self._pop()
        self._dict_on_top()

    def storage(self, _: Any) -> None:
        id = self._pop()
        if not (
            isinstance(id, tuple)
            and len(id) >= 5
            and id[0] == "storage"
            and isinstance(id[1], Name)
            and id[1].text in STORAGES
            and isinstance(id[2], str)
            and _is_count(id[4])
        ):
            raise Flaw("the pickle refers to something else than a storage")
        if any(more is not None for more in id[5:]):
            raise Flaw(f"storage {shown(id[2])} is a view of another one, as files of PyTorch before 0.4 have it")
        self._stack.append(StorageId(id[1].text, id[2], id[4]))


_LITERALS: Final = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8",
})  # fmt: skip
_CONSTANTS: Final[dict[str, Callable[[], Value]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_IGNORED: Final = frozenset({"PROTO", "FRAME"})
_STEPS: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.memoize,
    "TUPLE": _Machine.tuple_of_marked,
    "LIST": _Machine.list_of_marked,
    "DICT": _Machine.dict_of_marked,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_marked,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_marked,
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.name_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.storage,
}


def _put(target: dict[Any, Value], values: list[Value]) -> None:
    """Put keys and values, which alternate, into a dict."""
    if len(values) % 2:
        raise Flaw("the pickle has a key without a value")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) not in (str, int, bool, float):  # others may nest, and hashing them overflow the stack
            raise Flaw(f"a dict of the pickle has a key that is a {type(key).__name__}, no text or number")
        if key in target:
            raise Flaw(f"a dict of the pickle has the key {shown(key)} twice")
        target[key] = value


def _allowed(text: str) -> Name:
    """A name that a state dict needs.

    Raises:
        Flaw: it is another one.
    """
    if text not in _KNOWN:
        raise Flaw(
            f"the pickle asks for {shown(text)}, which no state dict of dense tensors needs; it was not loaded, "
            "nothing of it was run. If you trust the file, load it in PyTorch and save what is wanted, "
            "torch.save(model.state_dict(), …), quantized tensors as dequantize() and sparse ones as to_dense() gives"
        )
    return Name(text)


def _called(name: str, arguments: tuple[Value, ...]) -> Value:
    """What a call of one of the few functions comes to."""
    if name == _CONTAINER:
        return _container(arguments)
    if name == _SIZE:
        return tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)) else ()
    if name == _DEVICE:
        return None
    if name in _PARAMETERS:
        if not arguments or not isinstance(arguments[0], TensorView):
            raise Flaw(f"{name} of something else than a tensor")
        return arguments[0]
    if name in _TENSORS:
        return _tensor(name, arguments)
    raise Flaw(f"the pickle calls {shown(name)}, which is no function")


def _container(arguments: tuple[Value, ...]) -> dict[Any, Value]:
    made: dict[Any, Value] = {}
    if arguments:
        pairs = arguments[0]
        if len(arguments) > 1 or not isinstance(pairs, list):
            raise Flaw("an OrderedDict of something else than a list of pairs")
        for pair in pairs:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise Flaw("an OrderedDict of something else than a list of pairs")
            _put(made, list(pair))
    return made


def _tensor(name: str, arguments: tuple[Value, ...]) -> TensorView:
    least, most = _TENSORS[name]
    if not least <= len(arguments) <= most:
        raise Flaw(f"{name} of {len(arguments)} arguments; it takes {least} to {most}")
    storage, offset, shape, strides = arguments[:4]
    dtype = arguments[6] if name.endswith("_v3") else None
    states = arguments[7:] if name.endswith("_v3") else arguments[6:]
    if (
        not isinstance(storage, StorageId)
        or not _is_count(offset)
        or not isinstance(shape, (tuple, list))
        or not isinstance(strides, (tuple, list))
        or len(shape) != len(strides)
        or not all(map(_is_count, (*shape, *strides)))
        or not (dtype is None or (isinstance(dtype, Name) and dtype.text in DTYPES))
    ):
        raise Flaw(f"{name} of something else than a storage, an offset, a shape and strides")
    if any(isinstance(state, dict) and (state.get("conj") or state.get("neg")) for state in states):
        raise Flaw("a tensor that PyTorch conjugates or negates when it is read; save its .resolve_neg()")
    return TensorView(storage, offset, tuple(shape), tuple(strides), None if dtype is None else dtype.text)


def _is_count(value: Value) -> bool:
    return type(value) is int and 0 <= value < 2**63
